// The numbers of all heads, measured before the page was written: a table, and alignments.
import { drawPanels, element, number } from "./draw.js";

/** Creates the part of the page for a model's heads; `choose` is called with {layer, head}. */
export function headNumbers(facts, choose) {
  const caveat = facts.caveat ? [element("p", { className: "note" }, facts.caveat)] : [];
  return [
    element("p", { className: "patterns" }, `${facts.maps} ${facts.patterns}`.replaceAll(" %", "\u00a0%")),
    element("p", { className: "hint" }, `${facts.measured} The last row is a head that attends to all tokens so far alike. Point at a heading for its meaning.`),
    element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Every head in numbers" }, tableOf(facts, choose)),
    ...caveat,
    ...Object.entries(facts.alignment).map(([name, layers]) => alignmentOf(name, layers)),
  ];
}

function tableOf({ groups, columns, heads }, choose) {
  const heading = ({ heading, meaning }) => element("th", { scope: "col" }, element("abbr", { title: meaning }, heading));
  const top = groups.map(({ heading, span }) => element("th", { colSpan: span, scope: "colgroup" }, heading));
  return element("table", {},
    element("thead", {},
      element("tr", {}, element("th", { colSpan: 2, scope: "colgroup" }, ""), ...top),
      element("tr", {}, ...["layer", "head"].map((text) => element("th", { scope: "col" }, text)), ...columns.map(heading))),
    element("tbody", {}, ...heads.map(([layer, head], row) => rowOfHead({ layer, head }, columns, row, choose))),
    element("tfoot", {}, element("tr", {}, element("th", { colSpan: 2, scope: "row" }, "uniform"), ...columns.map(({ uniform }) => element("td", {}, uniform)))));
}

function rowOfHead({ layer, head }, columns, row, choose) {
  const button = element("button", { type: "button", ariaLabel: `Choose layer ${layer}, head ${head}` }, String(head));
  button.addEventListener("click", () => choose({ layer, head, held: true }));
  const made = columns.map(({ cells, shades }) => {
    const cell = element("td", {}, cells[row]);
    cell.style.setProperty("--share", shades[row]);
    return cell;
  });
  return element("tr", { "data-head": `${layer}.${head}` }, element("th", { scope: "row" }, String(layer)), element("th", { scope: "row" }, button), ...made);
}

/** Draws |cosine| between the matrices of every two heads of a layer, a picture per layer. */
function alignmentOf(name, layers) {
  const pictures = layers.map((rows, layer) => {
    const labels = rows.map((_, head) => `head ${head}`);
    const pairs = rows.flatMap((row, a) => row.slice(a + 1).map((value, b) => `${a} and ${a + 1 + b} ${number(value)}`));
    const canvas = element("canvas", { role: "img", ariaLabel: `Alignment of ${name} in layer ${layer}, heads ${pairs.join(", ")}` });
    const panel = { rows: rows.length, columns: rows.length, kind: "share", value: (a, b) => rows[a][b] };
    const told = element("span", { className: "cell" });
    const hit = drawPanels(canvas, [panel], { width: 220, tallest: 220, labels, columns: labels, row: -1, column: -1, square: true });
    canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
      const at = hit(offsetX, offsetY);
      if (at) told.textContent = `heads ${at.row} and ${at.column}: ${number(rows[at.row][at.column])}`;
    });
    return element("div", {}, element("span", {}, `layer ${layer}`), canvas, told);
  });
  return element("figure", { className: "alignment" },
    element("figcaption", {}, `How alike the heads' ${name} are: 1 if two are the same matrix up to a factor, 0 if they have nothing in common.`), ...pictures);
}
