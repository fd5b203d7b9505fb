// Compares two models on one text: their predictions, and the attention of their heads.
import { byId, drawPanels, element, number, percent } from "./draw.js";
import { mean, sameTokens } from "./model.js";
import { START, arrows, isStart } from "./pane.js";
import { comparison, firstScored, lossOf, textLosses } from "./reading.js";
import { softmax } from "./tensor.js";
import { label, shown } from "./tokenizer.js";

const MOST = 5; // tokens in the list of the largest differences
export const ROUNDING = 1e-4; // in nats, or of a token's attention: a smaller difference counts as none

/** Total variation distance of two distributions, or of other weights by size: 0 if they are equal, 1 if they share nothing. */
export function totalVariation(p, q) {
  let apart = 0, both = 0;
  for (let i = 0; i < Math.max(p.length, q.length); i++) {
    apart += Math.abs((p[i] ?? 0) - (q[i] ?? 0));
    both += Math.abs(p[i] ?? 0) + Math.abs(q[i] ?? 0);
  }
  return apart / (both || 1);
}

/** Returns the difference of two numbers, 0 if it is rounding. */
const differenceOf = (a, b) => (Math.abs(a - b) < ROUNDING ? 0 : a - b);

const largestOf = (values) => values.indexOf(Math.max(...values));

export class Differences {
  /** `choose` is called with the user's choice: {token, layer, head}; what is `known` comes first. */
  constructor(models, choose, known) {
    Object.assign(this, { models, choose, known });
    this.names = models.map(({ manifest }) => manifest.name);
    this.root = byId("two").content.cloneNode(true).firstElementChild;
    byId("steps").before(this.root);
    this.places = models[0].layers.flatMap(({ layer, count }) => {
      const shared = Math.min(count, models[1].layers[layer]?.count ?? 0);
      return Array.from({ length: shared }, (_, head) => ({ layer, head }));
    });
    for (const place of this.root.querySelectorAll(".swatches")) place.append(...this.names.map((name, i) => element("span", { className: `swatch of-${i}` }, name)));
    this.listen();
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  listen() {
    this.find(".tokens").addEventListener("click", ({ target }) => {
      const token = target.closest("button")?.dataset.token;
      if (token) this.choose({ token: Math.max(Number(token) - 1, 0), held: true });
    });
    arrows(this.find(".tokens"), { ArrowLeft: -1, ArrowRight: 1 }, (by) => this.step(by));
    const canvas = this.find(".by-head canvas");
    const at = (event) => this.hit?.(event.offsetX, event.offsetY);
    canvas.addEventListener("pointermove", (event) => at(event) && this.say(at(event)));
    canvas.addEventListener("click", (event) => {
      const found = at(event);
      if (found) this.choose({ token: found.column, ...this.places[found.row], held: true });
    });
  }

  /** Moves the focus to another token and chooses it. */
  step(by) {
    const buttons = Array.from(this.find(".tokens").children);
    const next = buttons[buttons.indexOf(document.activeElement) + by];
    if (!next) return;
    buttons.forEach((button) => (button.tabIndex = button === next ? 0 : -1));
    next.focus();
    next.click();
  }

  /** Measures the differences after a change of text or edits. */
  measure(readings) {
    const [one, other] = readings;
    this.root.hidden = !sameTokens(one.tokens, other.tokens);
    if (this.root.hidden) return;
    this.traces = readings.map(({ trace }) => trace);
    const [a, b] = this.traces;
    this.first = firstScored(a); // token i has gap i - first
    const [of_a, of_b] = this.traces.map(textLosses);
    this.gaps = of_a.map((loss, i) => differenceOf(loss, of_b[i]));
    this.rows = this.places.map(({ layer, head }) =>
      a.blocks[layer].map((row, i) => totalVariation(row.weights[head], b.blocks[layer][i].weights[head])));
    this.rows.push(a.logits.map((logits, i) => totalVariation(softmax(logits), softmax(b.logits[i]))));
    const bytes = Array.from(a.tokens, (token) => this.models[0].tokenizer.bytes[token]);
    this.texts = bytes.map((piece, i) => (isStart(a, i) ? START : label(piece)));
    this.labels = bytes.map((piece, i) => (isStart(a, i) ? START : shown(piece)));
    this.paintTokens();
    this.paintLargest();
  }

  /** Colours each token by the model that predicts it better, as strong as the difference. */
  paintTokens() {
    const [a] = this.traces;
    const largest = Math.max(...this.gaps.map(Math.abs), 1e-9);
    this.find(".tokens").replaceChildren(...this.texts.map((text, i) => {
      const gap = this.gaps[i - this.first] ?? 0;
      const better = this.names[gap > 0 ? 1 : 0];
      const difference = gap ? `${better} predicts it better by ${number(Math.abs(gap))} nats` : "both predict it alike";
      const title = i >= this.first ? difference : "given, so it has no loss";
      const button = element("button", { type: "button", "data-token": i, tabIndex: i ? -1 : 0, className: i < a.start ? "start" : `of-${gap > 0 ? 1 : 0}`, title, ariaLabel: `${this.labels[i]}: ${title}` }, text);
      button.style.setProperty("--weight", (Math.abs(gap) / largest).toFixed(3));
      return button;
    }));
  }

  paintLargest() {
    const order = Array.from(this.gaps.keys()).filter((i) => this.gaps[i]).sort((i, j) => Math.abs(this.gaps[j]) - Math.abs(this.gaps[i])).slice(0, MOST);
    const buttons = order.map((i) => {
      const better = this.names[this.gaps[i] > 0 ? 1 : 0];
      const button = element("button", { type: "button" }, `“${this.labels[i + this.first]}”: ${better} by ${number(Math.abs(this.gaps[i]))}`);
      button.addEventListener("click", () => this.choose({ token: i + this.first - 1, held: true }));
      return button;
    });
    const won = this.gaps.filter((gap) => gap > 0).length;
    const told = `${this.names[1]} predicts ${won} of ${this.gaps.length} tokens better. The largest differences, in nats: `;
    this.find(".largest").replaceChildren(...(buttons.length ? [told, ...buttons] : []));
  }

  /** Returns a sentence: the better model if the text can decide, its best token, and the most different head. */
  answer() {
    if (this.root.hidden || !this.gaps?.length) return "";
    const at = largestOf(this.gaps.map(Math.abs));
    if (!this.gaps[at]) return element("p", {}, `Both models predict every token of this text alike, to ${ROUNDING} nats.`);
    const better = this.names[this.gaps[at] > 0 ? 1 : 0];
    const shares = this.rows.slice(0, this.places.length).map(mean);
    const { layer, head } = this.places[largestOf(shares)];
    const known = this.known ? [element("b", {}, this.known), " "] : [];
    return element("p", {}, ...known, ...this.verdict(), this.validation(),
      ` They differ most at “${this.labels[at + this.first]}”, which ${better} predicts better by ${number(Math.abs(this.gaps[at]))} nats. `,
      `Layer ${layer}, head ${head} differs most: it gives ${percent(Math.max(...shares))} of its weight to other tokens.`);
  }

  verdict() {
    const { difference, error, tells } = comparison(this.gaps);
    const [better, worse] = difference > 0 ? [this.names[1], this.names[0]] : this.names;
    const by = `${number(Math.abs(difference))} nats per token`;
    const spread = element("span", { title: "two standard errors of the mean difference, over the tokens of this text" }, ` (± ${number(error)})`);
    const margin = this.gaps.length > 1 ? spread : ""; // one token has no spread
    if (tells) return [element("b", {}, better), ` predicts this text better than ${worse}, by ${by}`, margin, "."];
    const losses = this.traces.map((trace, i) => `${this.names[i]} ${number(lossOf(trace))}`).join(", ");
    return [element("b", {}, "This text does not tell which is better"), `: ${losses}, a difference of ${by}`, margin, "."];
  }

  /** Compares the losses on the whole validation text, if it is the same for both. */
  validation() {
    const [a, b] = this.models.map(({ manifest }) => manifest.validation ?? {});
    if (!a.text || a.text !== b.text) return "";
    return ` On their whole validation text: ${this.names[0]} ${number(a.loss)}, ${this.names[1]} ${number(b.loss)} (one training each).`;
  }

  /** Paints the chosen layer, head and token. */
  paint({ layer, head, token }) {
    if (this.root.hidden || !this.rows) return;
    const chosen = this.places.findIndex((place) => place.layer === layer && place.head === head);
    const row = chosen < 0 ? this.places.length : chosen;
    const labels = [...this.places.map((place) => `head ${place.layer}.${place.head}`), "next token"];
    const panel = { title: "", rows: this.rows.length, columns: this.labels.length, kind: "share", value: (r, c) => this.rows[r][c] };
    const rowHeight = Math.min(Math.max(300 / labels.length, 16), 36);
    const column = Math.min(token, this.labels.length - 1);
    this.hit = drawPanels(this.find(".by-head canvas"), [panel], { ...this.look(".by-head"), labels, columns: this.labels, row, column, rowHeight });
    this.say({ row, column });
    this.paintPair(layer, head, token, chosen >= 0);
  }

  /** Paints the difference of the chosen head's weights between the models. */
  paintPair(layer, head, token, isShared) {
    this.find(".pair").hidden = !isShared;
    if (!isShared) return;
    const [a, b] = this.traces.map((trace) => trace.blocks[layer].map((row) => row.weights[head]));
    const value = (i, j) => differenceOf(a[i][j] ?? 0, b[i][j] ?? 0);
    this.pair = { title: "", rows: a.length, columns: a.length, kind: "signed", value };
    this.find(".pair figcaption").textContent = `Layer ${layer}, head ${head}: weights of ${this.names[0]} minus those of ${this.names[1]}`;
    drawPanels(this.find(".pair canvas"), [this.pair], { ...this.look(".pair"), labels: this.labels, columns: this.labels, row: Math.min(token, a.length - 1), column: -1, square: true });
  }

  look(selector) {
    return { width: Math.max(this.find(selector).clientWidth, 200), tallest: 420 };
  }

  say({ row, column }) {
    const place = this.places[row];
    const what = place ? `layer ${place.layer}, head ${place.head} attends elsewhere with` : "the next token: they disagree on";
    this.find(".by-head .cell").textContent = `From “${this.labels[column]}”, ${what} ${percent(this.rows[row][column])} of its weight.`;
  }
}
