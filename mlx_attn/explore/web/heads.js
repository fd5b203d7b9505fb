// The numbers of all heads, measured before the page was written: a table, and alignments.
import { element, number, table } from "./draw.js";
import { explained } from "./words.js";

/** Creates the part of the page for a model's heads; `choose` is called with {layer, head}. */
export function headNumbers(facts, choose) {
  const caveat = facts.caveat ? [element("p", { className: "note" }, facts.caveat)] : [];
  return [
    element("p", { className: "patterns" }, facts.patterns.replaceAll(" %", "\u00a0%")),
    element("p", { className: "hint" }, `${facts.measured} The last row is a head that attends to all tokens so far alike. Point at a heading for its meaning.`),
    element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Every head in numbers" }, tableOf(facts, choose)),
    ...caveat,
    ...Object.entries(facts.alignment).map(([name, layers]) => alignmentOf(name, layers)),
  ];
}

function tableOf({ groups, columns, heads }, choose) {
  const heading = ({ heading, meaning }) => element("th", { scope: "col" }, explained(element("abbr", {}, heading), meaning));
  const top = groups.map(({ heading, span }) => element("th", { colSpan: span, scope: "colgroup" }, heading));
  return element("table", {},
    element("thead", {},
      element("tr", {}, element("td", { colSpan: 2 }), ...top),
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

/** Creates tables of |cosine| between the matrices of every two heads, one per layer. */
function alignmentOf(name, layers) {
  const tables = layers.map((rows, layer) => {
    const made = table(`layer ${layer}`, ["head", ...rows.keys()], rows.map((row, head) => [head, ...row.map(number)]));
    made.querySelectorAll("td").forEach((cell, at) => cell.style.setProperty("--share", rows.flat()[at]));
    return made;
  });
  return element("figure", { className: "alignment" },
    element("figcaption", {}, `How alike the heads' ${name} are: 1 if two are the same matrix up to a factor, 0 if they have nothing in common.`),
    element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: `Alignment of ${name}` }, ...tables));
}
