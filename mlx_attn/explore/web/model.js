// A model as its traced graphs: it runs on a text and records every step of every token.
import { Attention, intact } from "./attention.js";
import { Graph, sizeOf, tensorOf } from "./graph.js";
import { softmax, sum } from "./tensor.js";

export class GPT {
  /** `numbers` are the weights in the order of `manifest.arrays`, `others` the arrays of `manifest.constants`. */
  constructor(manifest, numbers, others) {
    Object.assign(this, { manifest, config: manifest.config });
    const arrays = [...placed(manifest.arrays, numbers), ...placed(manifest.constants, others).reverse()];
    const once = (facts) => lazily(() => new Graph(facts, arrays));
    const { passes, layers } = manifest.graphs;
    this.passes = passes.map(once);
    this.layers = manifest.layers.map((config, layer) => {
      const maps = once(layers[layer].maps);
      const outputs = Object.fromEntries(Object.entries(layers[layer].output).map(([length, facts]) => [length, once(facts)]));
      const own = { width: layers[layer].width, get maps() { return maps(); }, output: (length) => outputs[length]() };
      return new Attention(config, own, layer);
    });
  }

  /** Adds the document's start before a text's tokens, unless the text begins with it or leaves no room. */
  begin(tokens) {
    const { start } = this.manifest;
    return this.startOf(tokens) || start.length + tokens.length > this.longest ? tokens : [...start, ...tokens];
  }

  /** Returns how many of these tokens belong to the document's start: all of it or 0. */
  startOf(tokens) {
    const { start } = this.manifest;
    return start.every((token, i) => token === tokens[i]) ? start.length : 0;
  }

  /** Returns every step of a text; `before` itself if nothing has changed. */
  trace(tokens, edits = intact(), before = undefined) {
    if (before?.edits === edits && sameTokens(before.tokens, tokens)) return before;
    const { lengths } = this.manifest.graphs;
    const at = lengths.findIndex((length) => length >= tokens.length);
    const filled = new Float32Array(lengths[at]);
    filled.set(tokens);
    const arrays = this.passes[at]().run([filled, ...this.switches(tokens, edits)]);
    const blocks = this.layers.map((attention) => attention.rows(partsOf(arrays, attention.layer), tokens.length, edits));
    const { data, shape } = arrays.logits;
    const logits = Array.from(tokens, (_, i) => data.subarray(i * shape[2], (i + 1) * shape[2]));
    if (!logits.every((row) => row.every(Number.isFinite)))
      throw new Error("the model's numbers are not finite for this text: nothing that follows from them is shown");
    return { tokens, start: this.startOf(tokens), edits, blocks, logits, nats: [] };
  }

  switches(tokens, edits) {
    const whole = [tokens.length, edits.mask ? -Infinity : 0, edits.positions ? 1 : 0, edits.projection ? 1 : 0];
    return [...whole.map((value) => [value]), ...this.layers.flatMap((attention) => attention.switches(edits))];
  }

  /** Returns true if the model computes the same with these edits, tried on a few tokens. */
  ignores(edits) {
    const tokens = Array.from({ length: this.manifest.graphs.lengths[0] }, (_, i) => i % this.config.vocab_size);
    const [changed, plain] = [edits, intact()].map((each) => this.passes[0]().run([tokens, ...this.switches(tokens, each)]).logits.data);
    return changed.every((value, at) => Object.is(value, plain[at]));
  }

  /** The most tokens that the page reads, from the end of a text. */
  get longest() {
    return this.manifest.graphs.lengths.at(-1);
  }
}

export const isUnchanged = (edits) => JSON.stringify(edits) === JSON.stringify(intact());

export const sameTokens = (a, b) => a.length === b.length && a.every((token, i) => token === b[i]);

/** Returns the arrays of one layer, without its number in the names: "0.att" becomes "att". */
function partsOf(arrays, layer) {
  const own = Object.entries(arrays).filter(([name]) => name.startsWith(`${layer}.`));
  return Object.fromEntries(own.map(([name, array]) => [name.slice(`${layer}.`.length), array]));
}

/** Returns a function that computes a value at its first call. */
function lazily(make) {
  let value;
  return () => (value ??= make());
}

/** Returns the loss in nats of every token but the first, given its predecessors. */
export function losses({ tokens, logits, nats }) {
  for (let i = nats.length; i + 1 < tokens.length; i++) nats.push(-Math.log(softmax(logits[i])[tokens[i + 1]]));
  return nats;
}

export const mean = (values) => sum(values) / values.length;

/** Returns tokens with their probabilities, the likeliest first. */
export function likeliest(logits, count) {
  const probabilities = softmax(logits);
  const order = Array.from(probabilities.keys()).sort((a, b) => probabilities[b] - probabilities[a]);
  return order.slice(0, count).map((token) => ({ token, probability: probabilities[token], logit: logits[token] }));
}

/** Returns the next token: the likeliest at temperature 0, else drawn by `random`. */
export function drawn(logits, temperature, random) {
  if (temperature === 0) return logits.indexOf(Math.max(...logits));
  const probabilities = softmax(logits.map((value) => value / temperature));
  let rest = random();
  const token = probabilities.findIndex((probability) => (rest -= probability) < 0);
  return token < 0 ? probabilities.length - 1 : token;
}

/** Returns a generator of random numbers in [0, 1), determined by the seed (mulberry32). */
export function randomFrom(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** Cuts numbers into consecutive arrays of these shapes. */
function placed(shapes, numbers) {
  let start = 0;
  return shapes.map((shape) => {
    start += sizeOf(shape);
    return tensorOf(numbers.subarray(start - sizeOf(shape), start), shape);
  });
}
