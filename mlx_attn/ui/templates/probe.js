"use strict";
// A text's maps are bytes b with weight = (b / full)^2: the lower triangles of all maps, layer by
// layer and head by head, row by row, compressed with zlib and written in base64.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const { layers, heads, full } = data;
const state = { text: 0, token: 0, held: 0, layer: 0, head: 0 };
let bytes = new Uint8Array();
let tokens = [];

const inflate = async (base64) => {
  const packed = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};
const rowStart = (layer, head, i) => {
  const T = tokens.length;
  return ((layer * heads + head) * T * (T + 1)) / 2 + (i * (i + 1)) / 2;
};
const level = (layer, head, i, j) => (j > i ? 0 : bytes[rowStart(layer, head, i) + j]);
const weight = (layer, head, i, j) => (level(layer, head, i, j) / full) ** 2;
const percent = (w) => (w > 0 && w < 0.005 ? "<1" : Math.round(100 * w)) + " %";
const quoted = (i) => `${i} “${tokens[i]}”`;
const lookedAt = (layer, head, i, count) =>
  Array.from({ length: i + 1 }, (_, j) => [j, weight(layer, head, i, j)])
    .sort((a, b) => b[1] - a[1])
    .slice(0, count);

function paint(canvas, layer, head) {
  const T = tokens.length;
  canvas.width = canvas.height = T;
  const context = canvas.getContext("2d");
  const image = context.createImageData(T, T);
  const style = getComputedStyle(document.documentElement);
  const [r, g, b] = style.getPropertyValue("--plus-rgb").trim().split(/\s+/).map(Number);
  for (let i = 0; i < T; i++)
    for (let j = 0; j <= i; j++)
      image.data.set([r, g, b, (255 * level(layer, head, i, j)) / full], 4 * (i * T + j));
  context.putImageData(image, 0, 0);
}

function paintAll() {
  for (const canvas of document.querySelectorAll(".thumbs canvas"))
    paint(canvas, Number(canvas.dataset.layer), Number(canvas.dataset.head));
  paint(byId("map"), state.layer, state.head);
}

function showToken() {
  const { token, layer, head } = state;
  const root = document.documentElement.style;
  root.setProperty("--row", token / tokens.length);
  root.setProperty("--height", 1 / tokens.length);
  [...byId("tokens").children].forEach((button, j) => {
    button.style.setProperty("--weight", level(layer, head, token, j) / full);
    button.classList.toggle("later", j > token);
    button.classList.toggle("from", j === token);
    button.setAttribute("aria-pressed", j === state.held);
    button.tabIndex = j === state.held ? 0 : -1;
  });
  const most = lookedAt(layer, head, token, 3).map(([j, w]) => `${percent(w)} at ${quoted(j)}`);
  byId("summary").textContent =
    `Layer ${layer}, head ${head}, from token ${quoted(token)}: ${most.join(", ")}.`;
  showLooks();
}

function showLooks() {
  const { token, layer } = state;
  byId("looks-caption").textContent = `What each head of layer ${layer} attends to from token ${quoted(token)}`;
  const rows = Array.from({ length: heads }, (_, head) => {
    const looks = lookedAt(layer, head, token, 4).flatMap(([j, w]) => [
      make("span", { class: "look" }, make("bdi", {}, tokens[j]), ` ${percent(w)}`),
      " ",
    ]);
    const row = make("tr", {}, make("th", { scope: "row" }, `head ${head}`), make("td", {}, ...looks));
    row.classList.toggle("chosen-head", head === state.head);
    return row;
  });
  byId("looks").tBodies[0].replaceChildren(...rows);
}

function showHead() {
  const { layer, head } = state;
  for (const button of document.querySelectorAll(".thumbs button")) {
    const chosen = Number(button.dataset.layer) === layer && Number(button.dataset.head) === head;
    button.setAttribute("aria-pressed", chosen);
    button.tabIndex = chosen ? 0 : -1;
  }
  byId("chosen-heading").textContent = `Layer ${layer}, head ${head}`;
  byId("map").setAttribute("aria-label", `Attention map of layer ${layer}, head ${head}. ${data.summaries[layer][head]}`);
  paint(byId("map"), layer, head);
  showToken();
}

function remember() {
  const { text, held, layer, head } = state;
  const theme = document.documentElement.dataset.theme;
  const parts = [`token=${held}`, `layer=${layer}`, `head=${head}`];
  if (data.texts.length > 1) parts.unshift(`text=${text}`);
  if (theme) parts.push(`theme=${theme}`);
  history.replaceState(null, "", `#${parts.join("&")}`);
}

const within = (value, count) => Math.min(Math.max(Math.trunc(Number(value)) || 0, 0), count - 1);

function look(i, hold) {
  state.token = within(i, tokens.length);
  if (hold) state.held = state.token;
  showToken();
  if (hold) remember();
}

function choose(layer, head) {
  state.layer = within(layer, layers);
  state.head = within(head, heads);
  showHead();
  remember();
}

function keys(container, moves, act) {
  container.addEventListener("keydown", (event) => {
    const move = moves[event.key];
    if (move === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act(move);
    container.querySelector('[tabindex="0"]').focus();
  });
}

function buildTokens() {
  const buttons = tokens.map((token, i) =>
    make("button", { type: "button", "data-i": i, "aria-label": `token ${quoted(i)}` }, make("bdi", {}, token)),
  );
  byId("tokens").replaceChildren(...buttons);
}

function buildMaps() {
  const rows = Array.from({ length: layers }, (_, layer) => {
    const thumbs = Array.from({ length: heads }, (_, head) => {
      const place = { "data-layer": layer, "data-head": head };
      const frame = make("span", { class: "frame" }, make("canvas", { ...place, "aria-hidden": "true" }));
      const label = `layer ${layer}, head ${head}. ${data.summaries[layer][head]}`;
      return make("button", { type: "button", ...place, "aria-label": label, title: label }, frame, `head ${head}`);
    });
    const group = { class: "thumbs", role: "group", "aria-label": `Heads of layer ${layer}` };
    return [make("h3", {}, `layer ${layer}`), make("div", group, ...thumbs)];
  });
  byId("maps").style.setProperty("--heads", Math.min(heads, 12));
  byId("maps").replaceChildren(...rows.flat());
}

function buildTexts() {
  const buttons = data.texts.map((_, text) =>
    make("button", { type: "button", "data-text": text }, `text ${text + 1}`),
  );
  byId("texts").replaceChildren(...buttons);
}

async function read(text) {
  state.text = within(text, data.texts.length);
  const { tokens: labels, maps } = data.texts[state.text];
  bytes = await inflate(maps);
  tokens = labels;
  for (const button of byId("texts").children)
    button.setAttribute("aria-pressed", Number(button.dataset.text) === state.text);
  buildTokens();
}

async function follow(fragment) {
  const wanted = new URLSearchParams(fragment.replace(/^#/, ""));
  const theme = wanted.get("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  await read(wanted.get("text") ?? state.text);
  state.held = state.token = within(wanted.get("token") ?? tokens.length - 1, tokens.length);
  state.layer = within(wanted.get("layer") ?? state.layer, layers);
  state.head = within(wanted.get("head") ?? state.head, heads);
  showHead();
  paintAll();
}

function listen() {
  const token = (event) => event.target.closest("button[data-i]");
  byId("tokens").addEventListener("pointerover", (event) => token(event) && look(token(event).dataset.i, false));
  byId("tokens").addEventListener("pointerleave", () => look(state.held, false));
  byId("tokens").addEventListener("click", (event) => token(event) && look(token(event).dataset.i, true));
  keys(byId("tokens"), { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -1e9, End: 1e9 },
    (step) => look(state.held + step, true));
  byId("maps").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) choose(button.dataset.layer, button.dataset.head);
  });
  keys(byId("maps"), { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] },
    ([down, right]) => choose(state.layer + down, state.head + right));
  byId("map").addEventListener("pointermove", (event) => {
    const T = tokens.length;
    const i = within((event.offsetY / event.target.clientHeight) * T, T);
    const j = within((event.offsetX / event.target.clientWidth) * T, T);
    look(i, false);
    const w = weight(state.layer, state.head, i, j);
    byId("cell").textContent = `${quoted(i)} ${j > i ? "cannot look ahead at" : `gives ${percent(w)} to`} ${quoted(j)}`;
  });
  byId("map").addEventListener("pointerleave", () => look(state.held, false));
  byId("map").addEventListener("click", () => look(state.token, true));
  byId("texts").addEventListener("click", async (event) => {
    if (event.target.dataset.text === undefined) return;
    await follow(`text=${event.target.dataset.text}`);
    remember();
  });
  addEventListener("hashchange", () => follow(location.hash));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintAll);
}

buildTexts();
buildMaps();
follow(location.hash)
  .then(listen)
  .catch((error) => {
    byId("failure").hidden = false;
    byId("failure").textContent =
      `The maps cannot be drawn (${error.message}). Browsers from 2023 on can; the table and the figures need none.`;
  });
