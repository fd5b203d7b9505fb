// The home page: a table of runs for each text, their loss curves, and a comparison of two ticked runs.
import { ROUNDING } from "./differences.js";
import { byId, element, number } from "./draw.js";

const SVG = "http://www.w3.org/2000/svg";
const [HEIGHT, LEFT, BOTTOM] = [250, 44, 30];

/** Returns the indices of the models in the page's address; [] for the list of all runs. */
export function modelsInAddress(rows) {
  const names = [...new Set(new URLSearchParams(location.hash.slice(1)).getAll("run"))];
  const found = names.map((name) => rows.find((row) => row.name === name)?.model);
  return found.filter((place) => Number.isInteger(place)).slice(0, 2);
}

const addressOf = (names) => `#${names.map((name) => `run=${encodeURIComponent(name)}`).join("&")}`;

/** Shows all runs; `colours` distinguish the curves of a text. */
export function showHome(rows, colours) {
  const [section] = byId("home").content.cloneNode(true).children;
  document.querySelector("main").replaceChildren(section);
  const groups = new Map();  // filled by hand: Safari has Map.groupBy since 17.4
  for (const row of rows.filter(({ problem }) => !problem)) groups.set(row.group, [...(groups.get(row.group) ?? []), row]);
  const sorted = Array.from(groups.values()).sort((a, b) => b.length - a.length);
  byId("answers").replaceChildren(summary(rows, sorted));
  const ticked = new Set();
  const tick = (name, on) => {
    if (on) ticked.add(name);
    else ticked.delete(name);
    showTicked(ticked);
  };
  sorted.forEach((group, at) => section.querySelector(".groups").append(groupPart(group, noteOf(sorted, at), colours, tick)));
  const broken = rows.filter((row) => row.problem);
  if (broken.length) section.querySelector(".groups").append(brokenPart(broken));
  showTicked(ticked);
}

const contentOf = ([{ content, group }]) => content || group;

/** Returns what a table says of its losses beside those of the tables above. */
function noteOf(groups, at) {
  if (at === 0) return "";
  const isAbove = groups.slice(0, at).some((group) => contentOf(group) === contentOf(groups[at]));
  return isAbove ? "other tokens: only bits per byte can be compared" : "another text: its losses cannot be compared with those above";
}

function summary(rows, groups) {
  const texts = new Set(groups.map(contentOf)).size;
  const runs = `${rows.length} ${rows.length === 1 ? "run" : "runs"}, ${texts} ${texts === 1 ? "text" : "texts"}. `;
  const [first] = groups;
  const measured = first?.filter(({ val_loss }) => val_loss !== null) ?? [];
  const lowest = Math.min(...measured.map(({ val_loss }) => val_loss));
  // A conversion has the loss of its source but for rounding: the older one is named.
  const [best] = measured.filter(({ val_loss }) => val_loss - lowest < ROUNDING).sort((a, b) => a.changed - b.changed);
  if (!best) return element("p", {}, runs);
  const loss = best.bits_per_byte === null ? `${number(best.val_loss)} nats per token` : `${number(best.bits_per_byte)} bits per byte`;
  const alone = first.length > 1 ? ". One training each is no verdict: mlx-attn compare gives one." : ".";
  return element("p", {}, runs, "The lowest loss on ", textTitle(best), ": ", element("b", { dir: "auto" }, best.name), `, ${loss}${alone}`);
}

const textTitle = ({ text, vocabulary }) => `${text} (vocabulary of ${vocabulary.toLocaleString("en")})`;

function groupPart(group, note, colours, tick) {
  const lines = group.filter(({ curve }) => curve.length > 1);
  const colourOf = new Map(lines.slice(0, colours.length).map(({ name }, i) => [name, colours[i]]));
  const part = element("section", { className: "group" },
    element("h2", {}, "Trained on ", textTitle(group[0]), ...(note ? [" ", chip(note)] : [])));
  if (lines.length) part.append(chart(lines, colourOf));
  const body = element("tbody", {});
  const rows = group.map((row) => [row, homeRow(row, colourOf, tick, part)]);
  body.append(...rows.map(([, made]) => made));
  part.append(element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: `Runs on ${textTitle(group[0])}` },
    element("table", {}, heading(rows, body), body)));
  return part;
}

const chip = (text) => element("span", { className: "chip" }, text);

const COLUMNS = [
  ["compare"],
  ["run", (row) => row.name],
  ["loss", (row) => row.val_loss ?? Infinity, "the lowest validation loss in nats per token, and in bits per byte"],
  ["variant", (row) => row.variant],
  ["seed", (row) => row.seed ?? Infinity],
  ["parameters", (row) => row.parameters ?? Infinity],
  ["steps", (row) => row.steps],
  ["changed", (row) => -row.changed],
];

/** Creates the headings; each sorts by its column. */
function heading(rows, body) {
  const cells = COLUMNS.map(([title, key, meaning = ""]) => {
    if (!key) return element("th", { scope: "col" }, title);
    const button = element("button", { type: "button", title: meaning }, title);
    const cell = element("th", { scope: "col" }, button);
    button.addEventListener("click", () => {
      for (const other of cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", "ascending");
      rows.sort(([a], [b]) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
      body.append(...rows.map(([, made]) => made));
    });
    return cell;
  });
  return element("thead", {}, element("tr", {}, ...cells));
}

function homeRow(row, colourOf, tick, part) {
  const { name, variant, val_loss: loss, bits_per_byte: bits, seed, parameters, changed, model, closed } = row;
  const box = element("input", { type: "checkbox", "data-open": model !== null, ariaLabel: `Compare ${name}`, "data-run": name });
  box.addEventListener("change", () => tick(name, box.checked));
  const swatch = element("span", { className: "line", ariaHidden: "true" });
  swatch.style.setProperty("--colour", colourOf.get(name) ?? (row.curve.length > 1 ? "var(--line)" : "transparent"));
  const title = model === null
    ? element("span", { title: closed }, name, " ", element("code", {}, `mlx-attn open ${name}`))
    : element("a", { href: addressOf([name]) }, name);
  const cells = [
    loss === null ? "" : `${number(loss)}${bits === null ? "" : ` (${number(bits)} bits)`}`,
    variant, seed ?? "", parameters === null ? "" : parameters.toLocaleString("en"), stepsOf(row), `${age(Date.now() / 1000 - changed)} ago`,
  ];
  const made = element("tr", {}, element("td", {}, box), element("th", { scope: "row" }, swatch, title),
    ...cells.map((cell, i) => element("td", { "data-column": COLUMNS[i + 2][0] }, cell)));
  const mark = (on) => part.querySelectorAll("polyline").forEach((line) => line.classList.toggle("is-dim", on && line.dataset.run !== name));
  for (const [event, on] of [["pointerenter", true], ["pointerleave", false], ["focusin", true], ["focusout", false]]) made.addEventListener(event, () => mark(on));
  return made;
}

function stepsOf({ steps, planned, ended }) {
  if (ended) return steps.toLocaleString("en");
  return chip(`unfinished: ${steps.toLocaleString("en")}${planned > steps ? ` of ${planned.toLocaleString("en")}` : ""}`);
}

/** Formats seconds as a time ago. */
export function age(seconds) {
  const units = [["day", 86400], ["hour", 3600], ["minute", 60]];
  const [word, size] = units.find(([, length]) => seconds >= 1.5 * length) ?? ["second", 1];
  const count = Math.max(Math.round(seconds / size), 0);
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

function brokenPart(rows) {
  const lines = rows.map(({ name, problem }) => element("li", {}, element("b", {}, name), `: ${problem}`));
  return element("section", { className: "group" }, element("h2", {}, "These cannot be opened"), element("ul", {}, ...lines));
}

/** Offers the comparison of two ticked runs, and disables further boxes. */
function showTicked(ticked) {
  const names = [...ticked];
  for (const box of document.querySelectorAll(".group input")) {
    box.disabled = box.dataset.open === "false" || (!box.checked && names.length === 2);
  }
  const link = byId("compare");
  link.hidden = names.length !== 2;
  link.href = names.length === 2 ? addressOf(names) : "#";
  link.textContent = `Compare ${names.join(" and ")}`;
  byId("tick").hidden = names.length === 2;
}

// The chart.

function svg(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Draws training loss against tokens on a logarithmic scale, with the lowest validation loss as a dot. */
function chart(rows, colourOf) {
  const losses = rows.flatMap(({ curve, val_loss: loss }) => [...curve.map(([, value]) => value), ...(loss === null ? [] : [loss])]).filter((value) => value > 0).sort((a, b) => a - b);
  const most = Math.max(...rows.map(({ curve }) => curve.at(-1)[0]));
  // Sorted: Math.min and Math.max take no more than 65,536 numbers in Safari, those of 650 runs.
  const [low, high] = [Math.log(losses[0]), Math.log(losses.at(-1))];
  const width = Math.min(Math.max(document.body.clientWidth - 30, 300), 900);
  const x = (tokens) => LEFT + (tokens / most) * (width - LEFT - 12);
  const y = (value) => 8 + ((high - Math.log(value)) / (high - low || 1)) * (HEIGHT - BOTTOM - 14);
  // The newest, which have colours, are drawn last.
  const lines = rows.toReversed().flatMap(({ name, curve, val_loss: loss, best_at }) => {
    const colour = colourOf.get(name);
    const points = curve.filter(([, value]) => value > 0).map(([tokens, value]) => `${x(tokens).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    const look = colour ? { stroke: colour } : { class: "is-other" };
    const line = svg("polyline", { points, "data-run": name, fill: "none", ...look }, svg("title", {}, name));
    const dot = loss > 0 ? [svg("circle", { cx: x(Math.min(best_at ?? most, most)), cy: y(loss), r: 4, ...(colour ? { fill: colour } : { class: "is-other" }) }, svg("title", {}, `${name}: ${number(loss)}`))] : [];
    return [line, ...dot];
  });
  const spoken = rows.map(({ name, val_loss: loss }) => `${name}${loss === null ? "" : ` ${number(loss)}`}`).join(", ");
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `Training loss over the tokens read; lowest validation loss: ${spoken}` },
    ...axes(x, y, { most, width, low: Math.exp(low), high: Math.exp(high) }), ...lines);
  return element("figure", { className: "curves" }, picture,
    element("figcaption", { className: "hint" }, "Training loss in nats per token, on a logarithmic scale, over the tokens read. A dot is the lowest validation loss."));
}

function axes(x, y, { most, width, low, high }) {
  const round = [0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10].filter((value) => value >= low * 0.98 && value <= high * 1.02);
  const ticks = round.length > 1 ? round : [...new Set([low, Math.sqrt(low * high), high])];
  const across = [0, 0.25, 0.5, 0.75, 1].map((share) => share * most);
  const text = (at, words) => svg("text", { ...at, class: "tick" }, words);
  return [
    ...ticks.flatMap((value) => [svg("line", { x1: LEFT, x2: width - 12, y1: y(value), y2: y(value), class: "grid" }), text({ x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, round.includes(value) ? String(value) : number(value))]),
    ...across.map((tokens, i) => text({ x: x(tokens), y: HEIGHT - 10, "text-anchor": i === 0 ? "start" : i === 4 ? "end" : "middle" }, short(tokens))),
  ];
}

const short = (count) => (count >= 1e6 ? `${number(count / 1e6).replace(/\.?0+$/, "")}M` : count >= 1e3 ? `${Math.round(count / 1e3)}k` : String(Math.round(count)));
