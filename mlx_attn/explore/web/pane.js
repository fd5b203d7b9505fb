// One model's part of the page: its tokens, the picture of the chosen step, heads, numbers, matrices.
import { headEdits } from "./attention.js";
import { bars, byId, drawPanels, drawSmall, element, number, percent, signed, table } from "./draw.js";
import { headNumbers } from "./heads.js";
import { likeliest, losses } from "./model.js";
import { STEPS, energy, weightPanel } from "./steps.js";
import { label, shown } from "./tokenizer.js";
import { explain } from "./words.js";

export const START = "start";
const START_MEANING = "Before each document of the training text stood this; it is not part of your text";
export const isStart = (trace, i) => i < trace.start && trace.start === 1;

const tallest = () => Math.min(Math.max(innerHeight - 140, 420), 900);

export class Pane {
  /** `choose` is called with the user's choice: {token, target, layer, head}. */
  constructor(model, choose) {
    this.model = model;
    this.choose = choose;
    this.root = byId("pane").content.cloneNode(true).firstElementChild;
    this.canvas = this.find(".picture canvas");
    explain(this.root);
    this.buildFacts();
    this.buildHeads();
    this.buildNumbers();
    this.listen();
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  buildFacts() {
    const { name, variant, summary, parameters, config } = this.model.manifest;
    const { n_layers, n_heads, emb_dim, vocab_size, context_length, position } = config;
    this.find(".name").textContent = name;
    this.find(".facts").textContent =
      `${variant}${summary ? `: ${summary}` : ""}. ${parameters.toLocaleString("en")} numbers, all in this file.`;
    const facts = { layers: n_layers, heads: n_heads, width: emb_dim, vocabulary: vocab_size, context: context_length, positions: position };
    const { formula, dtype, tokenizer } = this.model.manifest;
    const words = { ...facts, tokenizer: tokenizer.kind, numbers: dtype, ...(formula && { formula }) };
    this.find(".about div").append(
      element("dl", {}, ...Object.entries(words).flatMap(([word, value]) => [element("dt", {}, word), element("dd", {}, String(value))])));
  }

  buildHeads() {
    this.thumbs = [];
    this.model.layers.forEach((attention, layer) => {
      const row = element("div", { className: "layer" }, element("span", { className: "layer-name" }, `layer ${layer}`));
      for (let head = 0; head < attention.count; head++) {
        const picture = element("canvas", { ariaHidden: "true" });
        const worth = element("span", { className: "worth" });
        const button = element("button", { type: "button", className: "head", ariaLabel: `layer ${layer}, head ${head}` }, picture, element("span", {}, `head ${head}`), worth);
        button.addEventListener("click", () => this.choose({ layer, head, held: true }));
        button.addEventListener("pointerenter", () => this.choose({ layer, head }));
        this.thumbs.push({ layer, head, button, picture, worth });
        row.append(button);
      }
      this.find(".heads").append(row);
    });
  }

  buildNumbers() {
    const { heads } = this.model.manifest;
    this.find(".every-head").hidden = !heads;
    if (heads) this.find(".every-head div").append(...headNumbers(heads, this.choose));
  }

  paintNumbers() {
    for (const row of this.root.querySelectorAll(".every-head tbody tr"))
      row.classList.toggle("here", row.dataset.head === `${this.context.layer}.${this.context.h}`);
  }

  listen() {
    const tokens = this.find(".tokens");
    const tokenOf = (event) => event.target.closest("button")?.dataset.token;
    tokens.addEventListener("click", (event) => tokenOf(event) && this.choose({ token: Number(tokenOf(event)), held: true }));
    tokens.addEventListener("pointerover", (event) => tokenOf(event) && this.choose({ token: Number(tokenOf(event)) }));
    for (const group of [tokens, this.find(".heads")]) group.addEventListener("pointerleave", () => this.choose({ leave: true }));
    arrows(tokens, { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }, (step) => {
      this.choose({ token: this.context.i + step, held: true });
      this.find(".tokens .from").focus();
    });
    arrows(this.find(".heads"), { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }, ([down, right]) => {
      this.choose({ layer: this.context.layer + down, head: this.context.h + right, held: true });
      this.find('.heads [aria-pressed="true"]').focus();
    });
    arrows(this.canvas, { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }, ([down, right]) =>
      this.choose({ token: this.context.i + down, target: this.context.j + right, held: true }));
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("click", (event) => this.point(event, true));
    this.find(".matrices").addEventListener("toggle", () => this.paintMatrices());
  }

  point(event, held) {
    const found = this.hit?.(event.offsetX, event.offsetY);
    if (!found) return;
    this.say(found);
    if (held) this.choose({ token: found.row, held, ...(this.step.square && { target: found.column }) });
  }

  say({ panel, row, column }) {
    const { value: of, kind, title } = this.panels[panel];
    const value = of(row, column);
    const text = kind === "weights" ? percent(value) : number(value);
    const what = this.step.square ? `${this.context.quote(row)} to ${this.context.quote(column)}` : `${this.context.quote(row)}, coordinate ${column} of ${title}`;
    this.find(".cell").textContent = `${what}: ${text}`;
  }

  /** Shows the tokens as buttons; existing buttons stay. */
  paintTokensOf(trace, given) {
    const tokens = this.find(".tokens");
    const same = this.trace?.tokens.every((token, i) => token === trace.tokens[i]) ? this.trace.tokens.length : 0;
    if (!same) tokens.replaceChildren();
    this.trace = trace;
    const bytes = Array.from(trace.tokens, (token) => this.model.tokenizer.bytes[token]);
    this.labels = bytes.map((piece, i) => (isStart(trace, i) ? START : shown(piece)));
    const cost = losses(trace);
    for (let i = same; i < bytes.length; i++)
      tokens.append(element("button", { type: "button", "data-token": i, tabIndex: -1, ariaLabel: this.labels[i] }, isStart(trace, i) ? START : label(bytes[i])));
    Array.from(tokens.children).forEach((button, i) => {
      button.classList.toggle("start", i < trace.start);
      button.title = i < trace.start ? START_MEANING : i ? `loss ${number(cost[i - 1])} nats` : "";
    });
    this.find(".reading").textContent = given > bytes.length ? `The model reads the last ${bytes.length} of ${given} tokens.` : "";
  }

  /** Underlines the tokens of words that are not in the training text. */
  markUnknown(marked) {
    Array.from(this.find(".tokens").children).forEach((button, i) => button.classList.toggle("unknown", marked[i]));
  }

  /** Draws the small maps of all heads. */
  paintMaps() {
    for (const { layer, head, button, picture } of this.thumbs) {
      drawSmall(picture, weightPanel(this.contextOf({ layer, head, token: 0, target: 0, edits: this.trace.edits })));
      button.classList.toggle("is-off", headEdits(this.trace.edits, layer, head).off);
    }
  }

  contextOf({ layer, head, token, target, edits }) {
    const attention = this.model.layers[layer];
    const { labels, trace } = this;
    const contributions = {};
    return {
      attention, trace, labels, layer, edits, h: head, i: token, j: target,
      rows: trace.blocks[layer],
      quote: (i) => `“\u2068${labels[i]}\u2069”`, // isolated: letters from right to left would take a number after them along
      labelOf: (id) => shown(this.model.tokenizer.bytes[id]),
      contribution: (r, h) => (contributions[h] ??= attention.contributions(trace.blocks[layer], h, edits))[r],
    };
  }

  /** Paints the chosen step, layer, head, token, and the token that it attends to. */
  paint(state) {
    const attention = this.model.layers[Math.min(state.layer, this.model.layers.length - 1)];
    const last = this.trace.tokens.length - 1;
    const chosen = { ...state, layer: attention.layer, head: Math.min(state.head, attention.count - 1), token: Math.min(state.token, last) };
    const weights = this.trace.blocks[chosen.layer][chosen.token].weights[chosen.head];
    chosen.target = Math.min(state.target ?? weights.indexOf(Math.max(...weights)), last);
    this.context = this.contextOf(chosen);
    this.step = STEPS[state.step];
    this.paintTokens(weights);
    this.paintHeads();
    this.paintStep(state.step);
    this.paintNext();
    this.paintMatrices();
    this.paintNumbers();
  }

  paintTokens(weights) {
    Array.from(this.find(".tokens").children).forEach((button, j) => {
      button.style.setProperty("--weight", Math.sqrt(Math.abs(weights[j] ?? 0)).toFixed(3));
      button.classList.toggle("of-1", weights[j] < 0);
      button.classList.toggle("from", j === this.context.i);
      button.classList.toggle("later", weights[j] === undefined);
      button.tabIndex = j === this.context.i ? 0 : -1;
      button.setAttribute("aria-pressed", j === this.context.i);
    });
    const [box, chosen] = [this.find(".tokens"), this.find(".tokens .from")];
    const hidden = chosen.offsetTop + chosen.offsetHeight - box.scrollTop - box.clientHeight;
    if (hidden > 0 || chosen.offsetTop < box.scrollTop) box.scrollTop = chosen.offsetTop - box.clientHeight / 2;
  }

  paintHeads() {
    for (const { layer, head, button } of this.thumbs) {
      const chosen = layer === this.context.layer && head === this.context.h;
      button.setAttribute("aria-pressed", chosen);
      button.tabIndex = chosen ? 0 : -1;
    }
  }

  /** Marks the numbers below the heads as stale, from an earlier text. */
  forgetWorth() {
    this.find(".heads").classList.add("is-stale");
    for (const { button, layer, head } of this.thumbs) button.setAttribute("aria-label", `layer ${layer}, head ${head}`);
  }

  /** Shows the increase of the loss without each head. */
  paintWorth(worths) {
    this.find(".heads").classList.remove("is-stale");
    const largest = Math.max(...worths, 1e-9);
    this.thumbs.forEach(({ worth, button, layer, head }, at) => {
      worth.textContent = signed(worths[at], 3);
      worth.style.setProperty("--share", Math.max(worths[at] / largest, 0));
      button.setAttribute("aria-label", `layer ${layer}, head ${head}, without it the loss is ${signed(worths[at], 3)} nats`);
    });
  }

  paintStep(at) {
    const { layer, h } = this.context;
    const { title, formula, text, sources } = this.model.manifest.steps[layer][at];
    const place = { model: "", layer: `, layer ${layer}`, head: `, layer ${layer}, head ${h}` }[this.step.of ?? "head"];
    this.find(".picture h3").textContent = `${at + 1}. ${title}${place}`;
    this.find(".formula").textContent = formula;
    this.find(".text").textContent = text;
    this.find(".sources").replaceChildren(...sources.map(sourceFigure));
    const { caption, headings, rows, here } = this.step.numbers(this.context);
    this.paintPicture(caption, rows);
    this.find(".numbers").replaceChildren(table(caption, headings, rows, here));
  }

  paintPicture(caption, rows) {
    this.panels = this.step.panels(this.context);
    const isNext = this.step.of === "model";
    for (const node of [this.canvas, this.find(".legend"), this.find(".next-heading"), this.find(".next")]) node.hidden = isNext;
    this.find(".next-large").replaceChildren(...(isNext ? [this.nextBars(20)] : []));
    this.find(".cell").textContent = "";
    if (isNext) return;
    this.find(".legend").replaceChildren(...legend(this.panels, this.step.square));
    const look = { width: Math.max(this.find(".picture").clientWidth, 240), tallest: tallest(), labels: this.labels, columns: this.step.square && this.labels, row: this.context.i, column: this.context.j, square: this.step.square };
    this.hit = drawPanels(this.canvas, this.panels, look);
    this.canvas.setAttribute("aria-label", `${this.find(".picture h3").textContent}. ${caption}: ${rows.slice(0, 3).map((row) => row.join(" ")).join(", ")}`);
    if (this.step.square) this.say({ panel: 0, row: this.context.i, column: this.context.j });
  }

  nextBars(count) {
    const found = likeliest(this.trace.logits[this.context.i], count);
    const truth = this.trace.tokens[this.context.i + 1];
    return bars(found.map(({ token, probability }) => ({
      label: this.context.labelOf(token), share: probability / found[0].probability, text: percent(probability), mark: token === truth && "what comes next in the text",
    })));
  }

  paintNext() {
    this.find(".next-heading").textContent = `Next after ${this.context.quote(this.context.i)}`;
    this.find(".next").replaceChildren(this.nextBars(8));
  }

  paintMatrices() {
    const fold = this.find(".matrices");
    if (!fold.open || !this.context) return;
    const { attention, h, edits } = this.context;
    const matrices = [
      ["S_h: makes the scores", attention.scoreMatrix(h)],
      ["V_h O_h: what is moved", attention.outputMatrix(h, edits)],
    ];
    const pictures = matrices.map(([title, matrix]) => (matrix ? matrixFigure(title, matrix) : element("p", {}, `${title}: there is no such matrix.`)));
    fold.querySelector("div").replaceChildren(...pictures, ...(matrices[0][1] ? [this.spectrumOf(attention.spectrum(h).values)] : []));
  }

  spectrumOf(values) {
    const entries = values.slice(0, 24).map((value, k) => ({ label: String(k + 1), share: value / (values[0] || 1), text: `${number(value)}, ${percent(energy(values, k + 1))}` }));
    const heading = `Singular values of S_h${values.length > 24 ? `, 24 of ${values.length}` : ""}, with the share of its squared norm so far`;
    return element("figure", {}, element("figcaption", {}, heading), bars(entries));
  }
}

/** Creates a listing of a function of the package that highlights the lines of a step. */
function sourceFigure({ file, line, code, marked }) {
  const lines = code.split("\n").map((text, at) => element(marked.includes(at) ? "mark" : "span", { className: "line" }, `${text}\n`));
  return element("figure", {}, element("figcaption", {}, `${file}, line ${line}`), element("pre", {}, element("code", {}, ...lines)));
}

/** Creates a picture of a matrix with a pixel per number, and the number under the pointer below it. */
function matrixFigure(title, matrix) {
  const [rows, columns] = [matrix.length, matrix[0].length];
  const largest = matrix.reduce((most, row) => row.reduce((found, value) => Math.max(found, Math.abs(value)), most), 0);
  const told = element("p", { className: "cell" }, `${rows} × ${columns} numbers, the largest by size ${number(largest)}`);
  const canvas = element("canvas", { role: "img", ariaLabel: `${title}, ${told.textContent}`, className: "matrix" });
  drawSmall(canvas, { rows, columns, kind: "signed", value: (r, d) => matrix[r][d] }, Math.max(rows, columns));
  canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
    const place = (offset, length, count) => Math.min(Math.max(Math.floor((offset / length) * count), 0), count - 1);
    const [r, c] = [place(offsetY, canvas.clientHeight, rows), place(offsetX, canvas.clientWidth, columns)];
    told.textContent = `row ${r}, column ${c}: ${number(matrix[r][c])}`;
  });
  return element("figure", {}, element("figcaption", {}, title, " ", swatch(0, "positive"), " ", swatch(1, "negative")), canvas, told);
}

const swatch = (of, text) => element("span", { className: `swatch of-${of}` }, text);

/** Explains the colours, rows and columns of a picture. */
function legend(panels, square) {
  const [{ kind, rows, columns, value }] = panels;
  const widths = panels.map((panel) => `${panel.title} has ${panel.columns}`).join(", ");
  const axes = square ? "A row for each query token, a column for each key token. " : `A row for each token, a column for each coordinate: ${widths}. `;
  const isSigned = Array.from({ length: rows * columns }).some((_, at) => value(Math.floor(at / columns), at % columns) < 0);
  if (kind === "weights") return [axes, swatch(0, "weight 1"), ...(isSigned ? [" ", swatch(1, "−1")] : []), ", paler is nearer to 0"];
  return [axes, swatch(0, "positive"), " ", swatch(1, "negative"), ", paler is nearer to 0", square && value(0, columns - 1) === -Infinity ? ", blank is minus infinity" : ""];
}

/** Calls `act` with the step of the arrow key that is pressed; with Alt, Ctrl or Meta it is the browser's. */
export function arrows(target, steps, act) {
  target.addEventListener("click", (event) => event.target.closest("button, canvas")?.focus({ preventScroll: true })); // in Safari no click does
  target.addEventListener("keydown", (event) => {
    if (!(event.key in steps) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act(steps[event.key]);
  });
}
