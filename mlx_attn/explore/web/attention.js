// One attention layer: its switches, its records token by token, and the matrices of its heads.
//
//     score_h(i, j) = scale * x_i S_h x_j^T
//     head_h        = softmax(score_h + causal mask) x V_h
//     y             = sum_h head_h O_h
//
// The model's graphs compute the numbers; only S_h cut to a rank is computed here.
import { add, coefficients, dot, scaled, singular } from "./tensor.js";

/** Edits of a model without any change. `heads` maps "layer.head" to the changes of a head. */
export const intact = () => ({ mask: true, positions: true, projection: true, heads: {} });
export const headEdits = (edits, layer, head) => edits.heads[`${layer}.${head}`] ?? UNCHANGED;
const UNCHANGED = { off: false, scores: true, temperature: 1, rank: Infinity };

/** Every step of one token in one layer, read lazily from the arrays of a pass. */
class Row {
  constructor(arrays, i, seen) {
    Object.assign(this, { arrays, i, seen });
  }
  /** Returns the token's numbers in an array [1, T, C]. */
  vector(name) {
    const { data, shape } = this.arrays[name];
    return data.subarray(this.i * shape[2], (this.i + 1) * shape[2]);
  }
  /** Returns the token's numbers for every head in an array [1, H, T, D], up to `end`. */
  heads_of(name, end = this.arrays[name].shape[3]) {
    const { data, shape: [, H, T, D] } = this.arrays[name];
    return Array.from({ length: H }, (_, h) => data.subarray((h * T + this.i) * D, (h * T + this.i) * D + end));
  }
}

const READERS = [
  [(row, name) => row.vector(name), ["before", "x", "output", "middle", "forward", "after"]],
  [(row, name) => row.heads_of(name), ["q", "k", "v", "heads"]],
  [(row, name) => row.heads_of(name, row.seen), ["scores", "logits", "weights"]],
];
for (const [read, names] of READERS)
  for (const name of names)
    Object.defineProperty(Row.prototype, name, {
      get() {
        const value = read(this, name);
        Object.defineProperty(this, name, { value });
        return value;
      },
    });

export class Attention {
  /** `config` has the layer's sizes; `graphs` gives its maps as graphs. */
  constructor(config, graphs, layer) {
    Object.assign(this, config);
    this.graphs = graphs;
    this.layer = layer;
    this.count = config.n_heads * config.queries_per_head; // maps: two for a pair of queries
  }

  /** Returns the records of `count` tokens, from the arrays of this layer. */
  rows(arrays, count, edits) {
    return Array.from({ length: count }, (_, i) => new Row(arrays, i, edits.mask ? i + 1 : count));
  }

  /** Returns this layer's inputs of a pass: see `_like_inputs` in traced.py. */
  switches(edits) {
    const own = Array.from({ length: this.count }, (_, h) => headEdits(edits, this.layer, h));
    const ranks = own.map(({ rank }, h) => this.cut(h, rank));
    return [
      own.map(({ off }) => (off ? 0 : 1)),
      own.map(({ scores }) => (scores ? 1 : 0)),
      own.map(({ temperature }) => 1 / temperature),
      ranks.flatMap(({ matrix }) => matrix.flatMap((row) => Array.from(row))),
      ranks.flatMap(({ shift }) => Array.from(shift)),
    ];
  }

  /** Returns the map q M + c of a head's queries that cuts S_h to a rank: with S_h = A B^T, A M = U U^T A. */
  cut(head, rank) {
    const K = this.graphs.width;
    const matrix = Array.from({ length: K }, (_, k) => new Float64Array(K).fill(1, k, k + 1));
    const shift = new Float64Array(K);
    if (rank === Infinity || !this.has_score_matrix) return { matrix, shift };
    const A = this.scoreFactors()[0][head], bias = this.bias[head];
    const left = this.spectrum(head).vectors.slice(0, rank);
    matrix.forEach((row) => row.fill(0));
    for (const u of left) {
      const n = coefficients(A, u), seen = A.map((column) => dot(u, column));
      matrix.forEach((row, k) => row.forEach((_, d) => (row[d] += n[k] * seen[d])));
    }
    shift.forEach((_, d) => (shift[d] = bias[d] - bias.reduce((sum, b, k) => sum + b * matrix[k][d], 0)));
    return { matrix, shift };
  }

  /** Returns scale * q_i k_j^T, without the mask. */
  scoreOf(rows, i, j, h) {
    return this.scale * dot(rows[i].q[h], shared(rows[j].k, h, this.count));
  }

  /** Returns the amount that ALiBi subtracts from a head's score per token of distance; 0 without ALiBi. */
  slopeOf(h, edits) {
    return edits.positions && this.slopes.length ? this.slopes[h] : 0;
  }

  /** Returns the contribution of one head to the output of every token. */
  contributions(rows, h, edits) {
    const { heads, x } = rows[0].arrays;
    const alone = heads.data.map((value, at) => (Math.floor(at / (heads.shape[2] * heads.shape[3])) === h ? value : 0));
    const [own, nothing] = [alone, new Float32Array(alone.length)].map((part) => this.outputOf(part, x.data, heads.shape[2], edits));
    return rows.map((_, i) => add(own[i], scaled(nothing[i], -1)));
  }

  outputOf(heads, x, T, edits) {
    const { data, shape } = this.graphs.output(T).run([heads, x, [edits.projection ? 1 : 0]]).y;
    return Array.from({ length: T }, (_, i) => data.subarray(i * shape[2], (i + 1) * shape[2]));
  }

  // The matrices of a head, measured by applying the maps to the rows of the identity and to 0.

  get identity() {
    const width = this.d_in;
    return Float32Array.from({ length: (width + 1) * width }, (_, at) => (at % (width + 1) === 0 && at < width * width ? 1 : 0));
  }

  /** Returns the maps' outputs for each unit vector and for 0: [heads][C + 1] rows. */
  mapped() {
    this.made ??= this.graphs.maps.run([this.identity]);
    return this.made;
  }

  /** Returns the columns of the query and key matrices of every head: [heads][K] rows of C. */
  scoreFactors() {
    if (this.factors) return this.factors;
    const rowsOf = (name) => headsOf(this.mapped()[name]);
    const columns = (rows) => Array.from(rows.at(-1), (bias, d) => Float64Array.from(rows.slice(0, -1), (row) => row[d] - bias));
    this.bias = rowsOf("q").map((rows) => rows.at(-1));
    this.factors = ["q", "k"].map((name) => rowsOf(name).map(columns));
    return this.factors;
  }

  /** Returns singular values and left singular vectors of S_h. */
  spectrum(head) {
    this.spectra ??= {};
    const [queries, keys] = this.scoreFactors();
    this.spectra[head] ??= singular(queries[head], shared(keys, head, this.count));
    return this.spectra[head];
  }

  /** Returns the rows of S_h; undefined for scores without such a matrix. */
  scoreMatrix(head) {
    if (!this.has_score_matrix) return undefined;
    const [queries, keys] = this.scoreFactors();
    const key = shared(keys, head, this.count);
    return Array.from({ length: this.d_in }, (_, c) =>
      queries[head].reduce((sum, q, d) => add(sum, scaled(key[d], q[c])), new Float64Array(this.d_in)));
  }

  /** Returns the rows of V_h O_h; undefined if a map is not linear. */
  outputMatrix(head, edits) {
    if (!this.has_output_matrix) return undefined;
    const T = this.d_in + 1;
    const values = shared(headsOf(this.mapped().v), head, this.count);
    const width = values[0].length;
    const heads = new Float32Array(this.count * T * width);
    values.forEach((row, i) => heads.set(row, (head * T + i) * width));
    const rows = this.outputOf(heads, this.identity, T, edits);
    return rows.slice(0, -1).map((row) => add(row, scaled(rows.at(-1), -1)));
  }
}

/** Cuts an array [1, H, T, D] into rows for each head. */
function headsOf({ data, shape: [, H, T, D] }) {
  return Array.from({ length: H }, (_, h) => Array.from({ length: T }, (_, i) => data.subarray((h * T + i) * D, (h * T + i + 1) * D)));
}

/** Returns the key or value head that query head h shares with others. */
export function shared(parts, h, count) {
  return parts[Math.floor((h * parts.length) / count)];
}
