// The display of each step: a picture of all tokens, and the numbers of the chosen one.
//
// A context has the attention layer, its records `rows`, the chosen token i, the token j that it
// attends to, the head h, the labels of the tokens, and the trace of the whole model.
import { shared } from "./attention.js";
import { number, percent } from "./draw.js";
import { likeliest } from "./model.js";
import { dot, size, sum } from "./tensor.js";

const FEW = 12; // rows of a table

const vectors = (c, title, vector) => ({ title, rows: c.rows.length, columns: vector(0).length, kind: "signed", value: (r, d) => vector(r)[d] });
const square = (c, title, kind, value) => ({ title, rows: c.rows.length, columns: c.rows.length, kind, value });
const head = (c, r, part) => shared(c.rows[r][part], c.h, c.attention.count);

/** Returns the indices of the numbers with the largest absolute values, in descending order. */
function largest(values, count = FEW) {
  return Array.from(values.keys()).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a])).slice(0, count);
}

/** Returns the tokens with most weight from the chosen one, and always j. */
function attended(c) {
  const found = largest(c.rows[c.i].weights[c.h]).filter((j) => j === c.j || c.rows[c.i].weights[c.h][j] !== 0);
  return found.includes(c.j) || c.j >= c.rows[c.i].weights[c.h].length ? found : [...found.slice(0, FEW - 1), c.j];
}

const byToken = (c, headings, cells) => ({
  caption: `From ${c.quote(c.i)}, layer ${c.layer}, head ${c.h}: the tokens of most weight`,
  headings: ["token", ...headings],
  rows: attended(c).map((j) => [c.labels[j], ...cells(j)]),
  here: attended(c).indexOf(c.j),
});

function coordinates(c, caption, headings, columns) {
  const places = largest(columns[columns.length - 1]);
  return {
    caption: `${caption}: the ${places.length} largest of ${columns[0].length} coordinates`,
    headings: ["coordinate", ...headings],
    rows: places.map((d) => [String(d), ...columns.map((values) => number(values[d]))]),
  };
}

export const weightPanel = (c) => square(c, "w_h", "weights", (i, j) => c.rows[i].weights[c.h][j] ?? 0);

/** A step belongs to a head, unless `of` is a layer or the model; `square` shows tokens by tokens. */
export const STEPS = [
  {
    of: "layer",
    panels: (c) => [vectors(c, "stream", (r) => c.rows[r].before), vectors(c, "x", (r) => c.rows[r].x)],
    numbers: (c) => coordinates(c, `x of ${c.quote(c.i)}`, ["stream", "x"], [c.rows[c.i].before, c.rows[c.i].x]),
  },
  {
    panels: (c) => [vectors(c, "q_h", (r) => c.rows[r].q[c.h]), vectors(c, "k_h", (r) => head(c, r, "k")), vectors(c, "v_h", (r) => head(c, r, "v"))],
    numbers(c) {
      const [q, k] = [c.rows[c.i].q[c.h], head(c, c.j, "k")];
      return coordinates(c, `q of ${c.quote(c.i)} and k of ${c.quote(c.j)}`, ["q", "k", "q × k"], [q, k, q.map((value, d) => value * k[d])]);
    },
  },
  {
    square: true,
    panels: (c) => [square(c, "score_h", "signed", (i, j) => c.attention.scoreOf(c.rows, i, j, c.h))],
    numbers: (c) =>
      byToken(c, ["q · k", `score = ${number(c.attention.scale)} × q · k`], (j) => {
        const product = dot(c.rows[c.i].q[c.h], head(c, j, "k"));
        return [number(product), number(c.attention.scale * product)];
      }),
  },
  {
    square: true,
    panels: (c) => [square(c, "s_h", "signed", (i, j) => c.rows[i].logits[c.h][j] ?? -Infinity)],
    numbers(c) {
      const [score, s] = [c.rows[c.i].scores[c.h], c.rows[c.i].logits[c.h]];
      const slope = c.attention.slopeOf(c.h, c.edits);
      if (!slope) return byToken(c, ["score", "s"], (j) => [number(score[j]), number(s[j])]);
      return byToken(c, ["score", `ALiBi: −${number(slope)} × distance`, "s"], (j) => [number(score[j]), number(-slope * (c.i - j)), number(s[j])]);
    },
  },
  {
    square: true,
    panels: (c) => [weightPanel(c)],
    numbers: (c) => byToken(c, ["s", "weight"], (j) => [number(c.rows[c.i].logits[c.h][j]), percent(c.rows[c.i].weights[c.h][j])]),
  },
  {
    panels: (c) => [vectors(c, "v_h", (r) => head(c, r, "v")), vectors(c, "head_h", (r) => c.rows[r].heads[c.h])],
    numbers: (c) =>
      byToken(c, ["weight", "length of v", "length of what is added"], (j) => {
        const [weight, length] = [c.rows[c.i].weights[c.h][j], size(head(c, j, "v"))];
        return [percent(weight), number(length), number(weight * length)];
      }),
  },
  {
    panels: (c) => [vectors(c, `from head ${c.h}`, (r) => c.contribution(r, c.h)), vectors(c, "output", (r) => c.rows[r].output)],
    numbers(c) {
      const row = c.rows[c.i];
      return {
        caption: `What each head adds for ${c.quote(c.i)} in layer ${c.layer}`,
        headings: ["head", "length of head_h", "length of its part of the output"],
        rows: row.heads.map((made, h) => [String(h), number(size(made)), number(size(c.contribution(c.i, h)))]),
        here: c.h,
      };
    },
  },
  {
    of: "layer",
    panels: (c) => [
      vectors(c, "stream", (r) => c.rows[r].before),
      vectors(c, "+ att", (r) => c.rows[r].output),
      vectors(c, "+ ff", (r) => c.rows[r].forward),
      vectors(c, "= stream", (r) => c.rows[r].after),
    ],
    numbers(c) {
      const { before, output, middle, forward, after } = c.rows[c.i];
      const parts = { stream: before, "+ att": output, "after attention": middle, "+ ff": forward, "= stream": after };
      return {
        caption: `The stream of ${c.quote(c.i)} in layer ${c.layer}`,
        headings: ["part", "length", "cosine with the stream before"],
        rows: Object.entries(parts).map(([name, part]) => [name, number(size(part)), number(dot(part, before) / (size(part) * size(before) || 1))]),
      };
    },
  },
  {
    of: "model",
    panels: () => [],
    numbers: (c) => ({
      caption: `After ${c.quote(c.i)}`,
      headings: ["token", "logit", "probability"],
      rows: likeliest(c.trace.logits[c.i], FEW).map(({ token, logit, probability }) => [c.labelOf(token), number(logit), percent(probability)]),
    }),
  },
];

/** Returns the share of the squared singular values within a rank. */
export function energy(values, rank) {
  const squares = values.map((value) => value ** 2);
  return sum(squares.slice(0, rank)) / (sum(squares) || 1);
}
