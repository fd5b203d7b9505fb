// The GPT around attention: mlx_attn/model/gpt.py in JavaScript, with a trace of every step.
import { Attention, intact } from "./attention.js";
import { ACTIVATIONS, add, layerNorm, linear, rmsNorm, rowOf, softmax, times } from "./tensor.js";

export class GPT {
  /** `manifest` says where in `numbers` each array lies, and what each layer is. */
  constructor(manifest, numbers) {
    const weights = nested(manifest.arrays, numbers);
    Object.assign(this, { manifest, config: manifest.config, weights });
    this.layers = manifest.layers.map((config, layer) => {
      const own = weights.trf_blocks[layer].att ?? {};
      return new Attention(config, own, layer);
    });
    this.norm = this.config.norm === "rmsnorm" ? rmsNorm : layerNorm;
    this.activation = ACTIVATIONS[this.config.activation];
  }

  /** A text's tokens after the document's start; a text that begins with it, or leaves it no room, stays as it is. */
  begin(tokens) {
    const { start } = this.manifest;
    return this.startOf(tokens) || start.length + tokens.length > this.longest ? tokens : [...start, ...tokens];
  }

  /** How many of these tokens are the document's start: all of it or none. */
  startOf(tokens) {
    const { start } = this.manifest;
    return start.every((token, i) => token === tokens[i]) ? start.length : 0;
  }

  /**
   * Every step of a text of tokens. Of a trace with the same edits the tokens that both begin with
   * are kept: with a causal mask nothing in them changes.
   */
  trace(tokens, edits = intact(), before = undefined) {
    const goesOn = before && before.edits === edits && edits.mask;
    const start = goesOn ? beginAlike(before.tokens, tokens) : 0;
    let stream = Array.from(tokens.slice(start), (token, i) => this.embed(token, start + i, tokens[start + i - 1], edits));
    const carries = Array.from(tokens.slice(start), (token) => ({ token }));
    const blocks = this.layers.map((attention, layer) => {
      const rows = goesOn ? before.blocks[layer].slice(0, start) : [];
      stream = this.block(attention, rows, stream, carries, edits);
      return rows;
    });
    const kept = goesOn ? before : { logits: [], nats: [] };
    const logits = [...kept.logits.slice(0, start), ...stream.map((x) => this.logitsOf(x))];
    return { tokens, start: this.startOf(tokens), edits, blocks, logits, nats: kept.nats.slice(0, Math.max(start - 1, 0)) };
  }

  embed(token, position, before, edits) {
    let x = rowOf(this.weights.tok_emb.weight, token);
    if (this.weights.shift && before !== undefined) {
      const row = rowOf(this.weights.tok_emb.weight, before);
      x = add(x, row.map((value, c) => value * this.weights.shift.data[c]));
    }
    return this.weights.pos_emb && edits.positions ? add(x, rowOf(this.weights.pos_emb.weight, position)) : x;
  }

  /** Adds a record for each row of the residual stream; gives the stream after the block. */
  block(attention, rows, stream, carries, edits) {
    const { norm1, norm2, ff } = this.weights.trf_blocks[attention.layer];
    const start = rows.length;
    stream.forEach((x, i) => {
      const row = attention.project(this.norm(norm1, x), start + i, carries[i], rows[start + i - 1], edits);
      rows.push({ ...row, before: x });
    });
    return stream.map((x, i) => {
      attention.attend(rows, start + i, edits);
      const row = rows[start + i];
      row.middle = add(x, row.output);
      const hidden = linear(ff.layers[0], this.norm(norm2, row.middle)).map(this.activation);
      row.forward = linear(ff.layers[2], hidden);
      row.after = add(row.middle, row.forward);
      return row.after;
    });
  }

  logitsOf(x) {
    const last = this.norm(this.weights.final_norm, x);
    return times((this.weights.out_head ?? this.weights.tok_emb).weight, last);
  }

  /** How many of a text's last tokens the page reads. */
  get longest() {
    return Math.min(this.config.context_length, 256);
  }
}

/** How many tokens two texts have in common before they differ. */
function beginAlike(a, b) {
  const shorter = Math.min(a.length, b.length);
  for (let i = 0; i < shorter; i++) if (a[i] !== b[i]) return i;
  return shorter;
}

/** Nats of every token but the first, given those before it. */
export function losses({ tokens, logits, nats }) {
  for (let i = nats.length; i + 1 < tokens.length; i++) nats.push(-Math.log(softmax(logits[i])[tokens[i + 1]]));
  return nats;
}

export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** Tokens with their probabilities, the likeliest first. */
export function likeliest(logits, count, temperature = 1) {
  const probabilities = softmax(logits.map((value) => value / temperature));
  const order = Array.from(probabilities.keys()).sort((a, b) => probabilities[b] - probabilities[a]);
  return order.slice(0, count).map((token) => ({ token, probability: probabilities[token], logit: logits[token] }));
}

/** The next token: the likeliest at temperature 0, else one drawn by `random`. */
export function drawn(logits, temperature, random) {
  if (temperature === 0) return logits.indexOf(Math.max(...logits));
  const probabilities = softmax(logits.map((value) => value / temperature));
  let rest = random();
  const token = probabilities.findIndex((probability) => (rest -= probability) < 0);
  return token < 0 ? probabilities.length - 1 : token;
}

/** Random numbers in [0, 1) that begin the same way for the same seed (mulberry32). */
export function randomFrom(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** Arrays by dotted names, "trf_blocks.0.att.W_query.weight", as objects in objects. */
function nested(arrays, numbers) {
  const tree = {};
  for (const { name, shape, offset } of arrays) {
    const columns = shape.at(-1);
    const count = shape.reduce((product, length) => product * length, 1);
    const matrix = { data: numbers.subarray(offset, offset + count), rows: count / columns, columns };
    const path = name.split(".");
    const last = path.pop();
    path.reduce((node, key) => (node[key] ??= {}), tree)[last] = matrix;
  }
  return tree;
}
