// Creates elements, formats numbers, and draws matrices.

/** Creates an element with properties, attributes for names that are not properties, and children. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Formats a number with three significant digits. */
export function number(value) {
  if (value === -Infinity) return "−∞";
  if (!Number.isFinite(value)) return String(value);
  const large = Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3);
  const text = large ? value.toExponential(1) : value.toFixed(Math.abs(value) < 10 ? 3 : Math.abs(value) < 100 ? 2 : 1);
  return text.replace(/-/g, "−");
}

export function signed(value, digits) {
  const text = digits ? value.toFixed(digits).replace("-", "−") : number(value);
  return Number(text.replace("−", "-")) === 0 ? text.replace("−", "") : value >= 0 ? `+${text}` : text;
}

export function percent(value) {
  const text = (100 * value).toFixed(Math.abs(value) < 0.0995 ? 1 : 0).replace("-", "−");
  return value > 0 && Number(text) === 0 ? "<0.1\u00a0%" : `${text}\u00a0%`;
}

/** Creates a table with a caption; the first cell of a row is its heading. */
export function table(caption, headings, rows, chosen = -1) {
  const cell = (text, c) => element(c === 0 ? "th" : "td", c === 0 ? { scope: "row" } : {}, text);
  return element("table", {},
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...headings.map((text) => element("th", { scope: "col" }, text)))),
    element("tbody", {}, ...rows.map((row, r) => element("tr", { className: r === chosen ? "here" : "" }, ...row.map(cell)))));
}

/** Creates a list of bars for tokens: [{ label, share, text, mark }]. */
export function bars(entries) {
  return element("ol", { className: "bars" }, ...entries.map(({ label, share, text, mark }) => {
    const bar = element("span", { className: "bar", ariaHidden: "true" });
    bar.style.setProperty("--share", Math.max(share, 0));
    return element("li", mark ? { className: "here", title: mark } : {}, element("bdi", {}, label), bar, element("span", {}, text));
  }));
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const rgb = (name) => style.getPropertyValue(name).trim().split(/\s+/).map(Number);
  return { plus: rgb("--plus-rgb"), minus: rgb("--minus-rgb"), neutral: rgb("--neutral-rgb"), ink: style.getPropertyValue("--ink"), quiet: style.getPropertyValue("--quiet"), focus: style.getPropertyValue("--focus") };
}

/** The strength of a number's colour, by kind of matrix; `largest` is its largest absolute value. */
const STRENGTHS = {
  weights: (v) => Math.sqrt(Math.abs(v)),
  share: (v) => v,
  signed: (v, largest) => Math.abs(v) / largest,
};

/** Returns a matrix as an image with one pixel per number. */
function imageOf({ rows, columns, value, kind }, { plus, minus, neutral }) {
  const image = new ImageData(columns, rows);
  const values = new Float64Array(rows * columns);
  let largest = 1e-12;
  for (let r = 0, at = 0; r < rows; r++)
    for (let c = 0; c < columns; c++, at++) {
      values[at] = value(r, c);
      if (values[at] !== -Infinity) largest = Math.max(largest, Math.abs(values[at]));
    }
  for (let at = 0; at < values.length; at++) {
    const v = values[at];
    const strength = v === -Infinity ? 0 : STRENGTHS[kind](v, largest);
    const [red, green, blue] = kind === "share" ? neutral : v < 0 ? minus : plus;
    image.data[4 * at] = red;
    image.data[4 * at + 1] = green;
    image.data[4 * at + 2] = blue;
    image.data[4 * at + 3] = 255 * Math.min(strength, 1);
  }
  const canvas = element("canvas", { width: columns, height: rows });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** Draws one matrix without labels, `size` pixels high and wide. */
export function drawSmall(canvas, panel, size = 96) {
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = panel.columns > size;
  context.drawImage(imageOf(panel, colours()), 0, 0, size, size);
}

const FONT = 12;
const MONO = `${FONT}px ui-monospace, Menlo, Consolas, monospace`;
const LEGIBLE = 10; // pixels that a row needs for its label

/**
 * Draws matrices side by side that share their rows. Returns a function from a point to {panel, row, column}.
 *
 * `look`: width in pixels; labels of rows, and of columns if they are tokens; chosen row and
 * column; `square` for maps of tokens; the height of a row if not 16 pixels.
 */
export function drawPanels(canvas, panels, look) {
  const rows = panels[0].rows;
  const ratio = globalThis.devicePixelRatio || 1;
  const place = layout(panels, rows, look, canvas.getContext("2d"));
  canvas.width = Math.round(look.width * ratio);
  canvas.height = Math.round(place.height * ratio);
  canvas.style.height = `${place.height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.imageSmoothingEnabled = false;
  context.font = MONO;
  const colour = colours();
  place.boxes.forEach((box, p) => drawPanel(context, panels[p], box, place, look, colour));
  drawRowLabels(context, place, look, colour, rows);
  return (x, y) => at(place, panels, rows, x, y);
}

/** Returns the space for labels above and at the left, and a box for each matrix. */
function layout(panels, rows, look, context) {
  context.font = MONO;
  const labelled = look.width / rows >= LEGIBLE && (look.square ? look.width * 0.75 : look.tallest) / rows >= LEGIBLE;
  const widest = (labels) => Math.max(...labels.map((text) => context.measureText(cut(text)).width));
  const left = (labelled ? widest(look.labels) : -4) + 8;
  const gap = 14;
  const inner = look.width - left - gap * (panels.length - 1);
  const total = panels.reduce((sum, panel) => sum + panel.columns, 0);
  const columns = labelled && look.columns && inner / look.columns.length >= LEGIBLE ? look.columns : [];
  const top = columns.length ? widest(columns) + 14 : panels.some((panel) => panel.title) ? 24 : 4;
  const height = look.square ? Math.min(inner, look.tallest) : Math.min(Math.max(rows * (look.rowHeight ?? 16), 60), look.tallest);
  let x = left;
  const boxes = panels.map((panel) => {
    const width = look.square ? height : (inner * panel.columns) / total;
    const box = { x, y: top, width, height };
    x += width + gap;
    return box;
  });
  return { left, top, boxes, labelled, columns, height: top + height + 4, cell: height / rows };
}

function drawPanel(context, panel, box, place, look, colour) {
  context.strokeStyle = colour.quiet;
  context.lineWidth = 0.5;
  context.strokeRect(box.x - 0.5, box.y - 0.5, box.width + 1, box.height + 1);
  context.imageSmoothingEnabled = panel.columns > box.width;
  context.drawImage(imageOf(panel, colour), box.x, box.y, box.width, box.height);
  const cell = box.width / panel.columns;
  context.lineWidth = 1.5;
  context.strokeStyle = colour.focus;
  if (look.row >= 0) context.strokeRect(box.x, box.y + look.row * place.cell, box.width, Math.max(place.cell, 2));
  drawColumnLabels(context, box, cell, place.columns, look.column, colour);
  if (!look.square) {
    context.fillStyle = colour.quiet;
    context.textAlign = "left";
    if (panel.title) context.fillText(panel.title, box.x, box.y - 8, box.width);
  }
}

/** Shortens a label of an axis, without the space before a word. */
const cut = (label, length = 10, text = Array.from(label.replace(/^␣+(?=.)/, ""))) => (text.length > length ? [...text.slice(0, length - 1), "…"] : text).join("");

function drawColumnLabels(context, box, cell, labels, chosen, colour) {
  labels.forEach((text, c) => {
    context.save();
    context.translate(box.x + (c + 0.5) * cell + FONT / 3, box.y - 6);
    context.rotate(-Math.PI / 2);
    context.textAlign = "left";
    context.fillStyle = c === chosen ? colour.focus : colour.quiet;
    context.fillText(cut(text), 0, 0);
    context.restore();
  });
}

function drawRowLabels(context, place, look, colour, rows) {
  context.textAlign = "right";
  for (let r = 0; r < rows && place.labelled; r++) {
    context.fillStyle = r === look.row ? colour.focus : colour.quiet;
    context.fillText(cut(look.labels[r]), place.left - 6, place.top + (r + 0.5) * place.cell + FONT / 3);
  }
}

function at(place, panels, rows, x, y) {
  const panel = place.boxes.findIndex((box) => x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + box.height);
  if (panel < 0) return undefined;
  const box = place.boxes[panel];
  return {
    panel,
    row: Math.floor(((y - box.y) / box.height) * rows),
    column: Math.floor(((x - box.x) / box.width) * panels[panel].columns),
  };
}
