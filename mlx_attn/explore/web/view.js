// The page: its state, the computations after a change, and the text about their results.
import { headEdits, intact } from "./attention.js";
import { Differences } from "./differences.js";
import { byId, element, number, percent, signed } from "./draw.js";
import { Graph, tensorOf } from "./graph.js";
import { modelsInAddress, showHome } from "./home.js";
import { GPT, drawn, isUnchanged, likeliest, losses, mean, randomFrom } from "./model.js";
import { Pane, arrows } from "./pane.js";
import { bitsPerByte, comparison, lossOf, tokensOfWords, unknownWords, warningOf } from "./reading.js";
import { STEPS, energy } from "./steps.js";
import { bytesOf, numbersOf } from "./tensor.js";
import { decode, label, tokenizerFrom } from "./tokenizer.js";
import { term } from "./words.js";

const AHEAD = 10; // tokens of the continuation that is shown at once
const SOFTMAX = 4; // the step to begin with
const BOOK = "Build a Large Language Model (From Scratch)";

const data = JSON.parse(byId("data").textContent);
const places = data.home ? modelsInAddress(data.home.rows) : Array.from(data.models.keys());
const models = places.map((i) => {
  const manifest = data.models[i];
  const base64 = byId(`weights-${i}`);
  const numbers = numbersOf(bytesOf(base64.textContent), manifest.dtype);
  base64.remove();
  const others = numbersOf(bytesOf(manifest.others), "float32");
  const words = manifest.words && new Set(manifest.words);
  return Object.assign(new GPT(manifest, numbers, others), { tokenizer: tokenizerFrom(manifest.tokenizer), words });
});
const panes = models.map((model) => new Pane(model, choose));
const apart = models.length > 1 ? new Differences(models, choose, data.verdict) : undefined;
const state = { step: SOFTMAX, layer: 0, head: 0, token: 0, held: {}, target: undefined, edits: intact(), readings: [], playing: 0 };
const random = randomFrom(1);

// Computing.

/** Encodes a text for each model, cut to the model's length. */
function read(text) {
  const encoded = models.map((model) => model.tokenizer.encode(text));
  if (encoded.some((tokens) => tokens.length === 0)) throw new Error("type at least one character");
  state.readings = encoded.map((tokens, i) => ({ ...state.readings[i], tokens: models[i].begin(tokens).slice(-models[i].longest), given: tokens.length, worths: [] }));
  state.token = Math.max(...state.readings.map(({ tokens }) => tokens.length)) - 1;
  Object.assign(state, { target: undefined, text, written: undefined });
  hold();
}

const isIntact = () => isUnchanged(state.edits);
const PLAIN = intact();

/** Traces every reading with and without the edits. */
function compute() {
  state.readings.forEach((reading, i) => {
    reading.plain = models[i].trace(reading.tokens, PLAIN, reading.plain);
    reading.trace = isIntact() ? reading.plain : models[i].trace(reading.tokens, state.edits, reading.trace);
  });
}

/** Returns the likeliest next tokens of a reading, one after the other. */
function continued(i) {
  const reading = state.readings[i];
  if (reading.ahead?.from !== reading.trace) reading.ahead = { from: reading.trace, trace: reading.trace, tokens: [] };
  return reading.ahead;
}

const isContinued = (i) => continued(i).tokens.length === AHEAD;

/** Returns the tokens that a model that writes reads: all if they fit, else the last of half a context. */
const thatFit = (i, tokens) => (tokens.length <= models[i].longest ? tokens : tokens.slice(-Math.floor(models[i].longest / 2)));

function continueByOne(i) {
  const ahead = continued(i);
  ahead.tokens.push(drawn(ahead.trace.logits.at(-1), 0));
  ahead.trace = models[i].trace(thatFit(i, [...ahead.trace.tokens, ahead.tokens.at(-1)]), ahead.trace.edits);
}

/** Returns the increase of the loss if only this head is switched off. */
function worthOf({ layer, head }, model, plain) {
  const without = { ...PLAIN, heads: { [`${layer}.${head}`]: { ...headEdits(PLAIN, layer, head), off: true } } };
  return lossOf(model.trace(plain.tokens, without)) - lossOf(plain);
}

// Sentences.

function answerOf(i) {
  const model = models[i];
  const { trace, plain } = state.readings[i];
  const [best] = likeliest(trace.logits.at(-1), 1);
  const loss = lossOf(trace), before = lossOf(plain);
  const change = isIntact() || Number.isNaN(loss) ? "" : ` (${signed(loss - before)} by what is switched off)`;
  const next = [element("q", { ariaLive: "off" }, decode(model.tokenizer, continued(i).tokens)), ". Next token: “", element("bdi", {}, label(model.tokenizer.bytes[best.token])), `” (${percent(best.probability)}). `];
  const cost = Number.isNaN(loss) ? "" : costOf(model, trace, change);
  if (models.length > 1) return element("p", {}, element("b", {}, model.manifest.name), " continues with ", ...next, cost);
  return element("p", {}, "It continues with ", ...next, cost, needed(i));
}

function costOf(model, trace, change = "") {
  const [loss, bits] = [number(lossOf(trace)), number(bitsPerByte(model, trace))];
  return element("span", {}, term("loss", "Loss"), " ", element("b", {}, loss), " ", term("nats", "nats"), ` per token${change}, ${bits} `, term("bits", "bits per byte"), ".");
}

/** Returns a short line while a model writes. */
function writingLine(model, i) {
  const name = models.length > 1 ? `${model.manifest.name}: ` : "";
  return element("p", {}, `${name}Writing. `, Number.isNaN(lossOf(state.readings[i].trace)) ? "" : costOf(model, state.readings[i].trace));
}

/** Returns a sentence about the head that this text needs most. */
function needed(i) {
  const { worths } = state.readings[i];
  const places = panes[i].thumbs;
  if (places.length < 2 || worths.length < places.length) return "";
  const most = Math.max(...worths);
  const { layer, head } = places[worths.indexOf(most)];
  if (most <= 0) return ` It needs none of its ${places.length} heads here: without any one the loss is no higher.`;
  return ` Of its ${places.length} heads it needs layer ${layer}, head ${head} most here: ${signed(most, 3)} nats without it.`;
}

/** Warns about a text that costs more than guessing, and marks the words that are new to the model. */
function showUnfamiliar() {
  const text = byId("text").value;
  const lines = models.map((model, i) => {
    const { plain } = state.readings[i];
    const found = unknownWords(text, model.words);
    panes[i].markUnknown(tokensOfWords(model, plain, text, found));
    return warningOf(model, plain, found, models.length > 1 ? model.manifest.name : "This model", data.texts.length);
  });
  const note = byId("unfamiliar");
  note.replaceChildren(...lines.filter(Boolean).map((line) => element("span", {}, line)));
  note.hidden = !note.childElementCount;
}

function showEffect() {
  const lines = state.readings.map(({ plain, trace }, i) => {
    const [before, loss] = [lossOf(plain), lossOf(trace)];
    const name = models.length > 1 ? `${models[i].manifest.name}: ` : "";
    if (Number.isNaN(before)) return `${name}${isIntact() ? "nothing" : "something"} off`; // no token is scored
    return isIntact() ? `${name}nothing off, loss ${number(before)}` : `${name}loss ${number(before)} → ${number(loss)} (${signed(loss - before)})`;
  });
  byId("effect").replaceChildren(...lines.map((line) => element("span", {}, line)));
}

// Painting.

function paint() {
  if (state.readings.length) {
    panes.forEach((pane) => pane.paint(state));
    apart?.paint(state);
  }
  paintSwitches();
  Array.from(byId("steps").children).forEach((button, at) => {
    button.setAttribute("aria-current", at === state.step ? "step" : "false");
    if (at === state.step) byId("steps").scrollLeft = button.offsetLeft - byId("steps").clientWidth / 2;
  });
}

function showStep(at) {
  state.step = at;
  paint();
}

let later = 0;

/** Updates the page after a change of text or edits; slow work follows when no model writes. */
function refresh() {
  compute();
  panes.forEach((pane, i) => {
    const { trace, given, worths } = state.readings[i];
    pane.paintTokensOf(trace, given);
    if (!worths.length) pane.forgetWorth();
    if (!state.playing || trace.tokens.length % 8 === 0) pane.paintMaps();
  });
  for (const told of document.querySelectorAll("[role=status], [aria-live]")) told.setAttribute("aria-busy", Boolean(state.playing));
  if (state.playing) byId("answers").replaceChildren(...models.map(writingLine));
  apart?.measure(state.readings);
  showEffect();
  if (!state.playing) showUnfamiliar();
  paint();
  clearTimeout(later);
  if (!state.playing) later = setTimeout(showAnswers, 30);
}

function showAnswers() {
  byId("answers").replaceChildren(apart?.answer() ?? "", ...models.map((_, i) => answerOf(i)));
  later = setTimeout(workOn, 0);
}

/** Does one piece of the slow work, a token ahead or a head, so that the page stays responsive. */
function workOn() {
  const writing = models.findIndex((_, i) => !isContinued(i));
  if (writing < 0) return measureHead();
  continueByOne(writing);
  byId("answers").querySelectorAll("q")[writing].textContent = decode(models[writing].tokenizer, continued(writing).tokens);
  later = setTimeout(workOn, 0);
}

/** Measures one further head. */
function measureHead() {
  const at = state.readings.findIndex(({ plain, worths }, i) => !Number.isNaN(lossOf(plain)) && worths.length < panes[i].thumbs.length);
  if (at < 0) return;
  const { plain, worths } = state.readings[at];
  const heads = panes[at].thumbs;
  worths.push(worthOf(heads[worths.length], models[at], plain));
  if (worths.length < heads.length) later = setTimeout(workOn, 0);
  else showWorth(at);
}

function showWorth(at) {
  panes[at].paintWorth(state.readings[at].worths);
  if (!state.started) beginWithTheHeadThatMatters(at);
  showAnswers();
}

function beginWithTheHeadThatMatters(at) {
  const { worths } = state.readings[at];
  const { layer, head } = panes[at].thumbs[worths.indexOf(Math.max(...worths))];
  choose({ layer, head, held: true });
}

/** Reads the text if it is new, and acts; what cannot be read or computed leaves the page empty. */
function attempt(act) {
  const fail = (message) => {
    byId("failure").textContent = message;
    byId("failure").hidden = !message;
    document.body.classList.toggle("is-failed", Boolean(message));
  };
  try {
    fail("");
    if (state.text !== byId("text").value) read(byId("text").value);
    act();
  } catch (error) {
    stop();
    fail(error.message);
  }
}

/** Keeps the choice after the pointer leaves. */
function hold() {
  state.held = { token: state.token, target: state.target, layer: state.layer, head: state.head };
}

function choose({ token, target, layer, head, held, leave }) {
  if (leave) ({ token, target, layer, head } = state.held);
  if (layer !== undefined) {
    const layers = Math.max(...models.map((model) => model.layers.length));
    const count = Math.max(...models.map((model) => model.layers[0].count));
    Object.assign(state, { layer: Math.min(Math.max(layer, 0), layers - 1), head: Math.min(Math.max(head, 0), count - 1), target: undefined });
  }
  if (token !== undefined) {
    const longest = Math.max(...state.readings.map(({ tokens }) => tokens.length));
    state.token = Math.min(Math.max(token, 0), longest - 1);
    state.target = target === undefined ? undefined : Math.max(target, 0);
  }
  if (held) {
    state.started = true;
    hold();
  }
  paint();
}

// Switches.

function paintSwitches() {
  const edit = headEdits(state.edits, state.layer, state.head);
  const attention = models[0].layers[Math.min(state.layer, models[0].layers.length - 1)];
  const limit = Math.min(attention.d_in, attention.scoreFactors()[0][0].length);
  byId("of-head").querySelector("legend").textContent = `Layer ${state.layer}, head ${state.head}`;
  byId("off").checked = edit.off;
  byId("scoreless").checked = !edit.scores;
  byId("temperature").value = Math.log2(edit.temperature);
  byId("temperature").ariaValueText = byId("temperature-value").textContent = `× ${number(edit.temperature)}`;
  byId("rank").max = limit;
  byId("rank").value = Math.min(edit.rank, limit);
  const share = edit.rank >= limit || !attention.has_score_matrix ? "" : `, ${percent(energy(attention.spectrum(Math.min(state.head, attention.count - 1)).values, edit.rank))} of |S|²`;
  byId("rank-value").textContent = `${Math.min(edit.rank, limit)} of ${limit}${share}`;
  for (const name of ["mask", "positions", "projection"]) byId(name).checked = !state.edits[name];
}

/** Disables the switches that change nothing. */
function disableSwitches() {
  const all = models.flatMap((model) => model.layers);
  const without = (edits, reason) => models.every((model) => model.ignores({ ...PLAIN, ...edits })) && reason;
  const lacking = {
    mask: without({ mask: false }, "this model reads no mask"),
    positions: without({ positions: false }, "this model reads no positions"),
    projection: without({ projection: false }, "there is no square out_proj to leave out"),
    rank: !all.some((a) => a.has_score_matrix) && "the scores are not made by one matrix",
    scoreless: without({ heads: headsWith({ scores: false }) }, "this model reads no scores"),
    temperature: without({ heads: headsWith({ temperature: 2 }) }, "this model reads no scores"),
  };
  for (const [id, reason] of Object.entries(lacking)) {
    byId(id).disabled = Boolean(reason);
    if (reason) byId(id).closest("label").after(element("span", { className: "hint" }, reason));
  }
}

function change(edits) {
  state.edits = { ...state.edits, ...edits };
  attempt(refresh);
}

/** Returns the edits of heads with changes in these, [layer, head]; by default in every head. */
function headsWith(changes, places = panes.flatMap(({ thumbs }) => thumbs.map(({ layer, head }) => [layer, head]))) {
  const heads = { ...state.edits.heads };
  for (const [layer, head] of places) heads[`${layer}.${head}`] = { ...headEdits(state.edits, layer, head), ...changes };
  return heads;
}

/** Changes the chosen head, or every head. */
const changeHead = (changes) => change({ heads: headsWith(changes, byId("every").checked ? undefined : [[state.layer, state.head]]) });

function listenToSwitches() {
  const on = (id, event, act) => byId(id).addEventListener(event, (happened) => act(happened.target));
  on("off", "change", ({ checked }) => changeHead({ off: checked }));
  on("scoreless", "change", ({ checked }) => changeHead({ scores: !checked }));
  on("temperature", "input", ({ value }) => changeHead({ temperature: 2 ** value }));
  on("rank", "input", ({ value, max }) => changeHead({ rank: value === max ? Infinity : Number(value) }));
  for (const name of ["mask", "positions", "projection"]) on(name, "change", ({ checked }) => change({ [name]: !checked }));
  on("restore", "click", () => change(intact()));
}

// Writing.

/** Adds a token from the writing model; a text that does not fit continues from its last half. */
function addToken() {
  const writer = Number(byId("writer").value);
  const { trace, tokens } = state.readings[writer];
  const token = drawn(trace.logits.at(-1), Number(byId("warmth").value), random);
  const { before, written } = state.written?.by === writer ? state.written : { before: byId("text").value, written: [] };
  // Decoded together, because a character may take several tokens.
  const text = byId("text").value = before + decode(models[writer].tokenizer, [...written, token], { stream: true });
  markExample();
  const added = thatFit(writer, [...tokens, token]);
  const readings = state.readings.map((reading, i) => {
    if (i === writer) return { ...reading, given: reading.given + 1, tokens: added, worths: [] };
    const all = models[i].begin(models[i].tokenizer.encode(text));
    const isAlike = added.length <= models[i].longest && added.every((one, at) => one === all.at(at - added.length));
    return { ...reading, given: all.length, tokens: isAlike ? added : thatFit(i, all), worths: [] };
  });
  // Only now: a text that another model cannot read is read again, and refused again.
  Object.assign(state, { text, readings, written: { by: writer, before, written: [...written, token] } });
  state.token = Math.max(...state.readings.map((reading) => reading.tokens.length)) - 1;
  state.target = undefined;
  hold();
  refresh();
}

function stop() {
  cancelAnimationFrame(state.playing);
  state.playing = 0;
  byId("play").setAttribute("aria-pressed", "false");
}

function play() {
  if (state.playing) {
    stop();
    return refresh();
  }
  const frame = () => {
    attempt(addToken);
    if (byId("play").getAttribute("aria-pressed") === "true") state.playing = requestAnimationFrame(frame);
  };
  byId("play").setAttribute("aria-pressed", "true");
  state.playing = requestAnimationFrame(frame);
}

function write(text) {
  byId("text").value = text;
  reread();
}

/** Updates the page after a change of the text. */
function reread() {
  markExample();
  attempt(refresh);
}

function markExample() {
  Array.from(byId("texts").children).forEach((button, i) => button.setAttribute("aria-pressed", data.texts[i] === byId("text").value));
}

function listen() {
  byId("text").addEventListener("input", reread);
  arrows(byId("steps"), { ArrowLeft: -1, ArrowRight: 1 }, (by) => {
    showStep(Math.min(Math.max(state.step + by, 0), STEPS.length - 1));
    byId("steps").children[state.step].focus();
  });
  byId("one").addEventListener("click", () => attempt(addToken));
  byId("play").addEventListener("click", play);
  byId("warmth").addEventListener("input", showWarmth);
  addEventListener("resize", () => paint());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => attempt(refresh));
  listenToSwitches();
}

function showWarmth() {
  const warmth = Number(byId("warmth").value);
  byId("warmth-value").textContent = warmth === 0 ? "0, the likeliest" : warmth.toFixed(1);
}

function build() {
  byId("panes").append(...panes.map((pane) => pane.root));
  document.body.classList.toggle("two", models.length > 1);
  byId("writer-field").hidden = models.length === 1;
  byId("writer").append(...models.map(({ manifest }, i) => element("option", { value: i }, manifest.name)));
  STEPS.forEach((_, at) => {
    const { title, book } = models[0].manifest.steps[0][at];
    const names = [element("span", {}, title), element("span", { className: "section" }, book.section), element("code", {}, book.name)];
    const button = element("button", { type: "button", title: `${BOOK}, section ${book.section}: ${book.name}` }, element("span", { className: "place", ariaHidden: "true" }, String(at + 1)), ...names);
    button.addEventListener("click", () => showStep(at));
    byId("steps").append(button);
  });
  data.texts.forEach((text, i) => {
    const button = element("button", { type: "button" }, `text ${i + 1}`);
    button.addEventListener("click", () => write(text));
    byId("texts").append(button);
  });
  byId("texts").hidden = data.texts.length < 2;
  byId("switches").open = matchMedia("(min-width: 861px)").matches;
  showWarmth();
  disableSwitches();
  listen();
  write(data.texts[0] || decode(models[0].tokenizer, [0]));
}

/** Starts the page: one or two runs, the list of all runs, or the runs in the address. */
function start() {
  if (!data.home) return build();
  addEventListener("hashchange", () => location.reload());
  if (!models.length) return showHome(data.home.rows, data.home.colours);
  data.texts = models[0].manifest.texts;
  document.title = document.querySelector("h1").textContent = questionOf(models.map(({ manifest }) => manifest.name));
  byId("back").hidden = false;
  build();
}

const questionOf = ([name, other]) => (other ? `Where do ${name} and ${other} differ?` : `What does ${name} attend to, and what does it need?`);

start();

/** For the console of the browser, and for tests. */
globalThis.explorer = { models, panes, state, apart, intact, losses, lossOf, comparison, mean, Graph, tensorOf };
