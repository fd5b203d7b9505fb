// One attention layer: mlx_attn/attention/attention.py in JavaScript, token by token.
//
//     score_h(i, j) = scale * x_i S_h x_j^T
//     head_h        = softmax(score_h + causal mask) x V_h
//     y             = sum_h head_h O_h
//
// A record holds every step of one token: x, q, k, v, then scores, logits, weights and heads by head,
// and the output. The records of earlier tokens are all that a new one needs.
import { LOGITS, MIXING, OUTPUTS, SCORES, VALUES, gatesUpTo } from "./maps.js";
import { add, dot, linear, rmsNorm, rope, scaled, singular } from "./tensor.js";

/** What is changed in the model: nothing, at first. `heads` maps "layer.head" to changes of a head. */
export const intact = () => ({ mask: true, positions: true, projection: true, heads: {} });
export const headEdits = (edits, layer, head) => edits.heads[`${layer}.${head}`] ?? UNCHANGED;
const UNCHANGED = { off: false, scores: true, temperature: 1, rank: Infinity };

export class Attention {
  /** `config` has the layer's sizes and choices; `weights` its arrays by name. */
  constructor(config, weights, layer) {
    Object.assign(this, config, weights);
    this.layer = layer;
    this.count = config.n_heads * config.queries_per_head; // maps: two for a pair of queries
    this.learned_slopes = this.log_slopes && Array.from(this.log_slopes.data, Math.exp);
  }

  /** The first part of a token's record: what is computed from x alone. */
  project(x, position, carry, before, edits) {
    const [q, k] = SCORES[this.choices.score](this, x);
    const turn = (y) => this.rotated(this.qk_norm ? rmsNorm({}, y) : y, position, edits);
    return {
      x,
      q: q.map((row, h) => turn(this.queryOfRank(x, h, edits) ?? row)),
      k: k.map(turn),
      v: VALUES[this.choices.value](this, x, k, carry),
      gates: this.W_forget && gatesUpTo(this, x, before?.gates),
    };
  }

  rotated(y, position, edits) {
    return this.position === "rope" && edits.positions ? rope(y, position) : y;
  }

  /** The query of a head whose S_h is cut to its largest singular values; undefined where it is not. */
  queryOfRank(x, head, edits) {
    const { rank } = headEdits(edits, this.layer, head);
    if (rank === Infinity || !this.has_score_matrix) return undefined;
    const kept = this.spectrum(head).vectors.slice(0, rank);
    const seen = kept.reduce((sum, u) => add(sum, scaled(u, dot(u, x))), new Float64Array(x.length));
    return SCORES[this.choices.score](this, seen)[0][head];
  }

  /** Adds the rest to the record of token i: what it makes of the tokens that it sees. */
  attend(rows, i, edits) {
    const row = rows[i];
    const seen = edits.mask ? i + 1 : rows.length;
    row.scores = row.q.map((_, h) => this.scoresOf(rows, i, h, seen, edits));
    const s = this.choices.logits.reduce((made, name) => LOGITS[name](this, made, i, rows), row.scores);
    row.logits = s.map((values, h) => this.masked(values, i, h, edits));
    row.weights = MIXING[this.choices.mixing](this, row.logits);
    row.heads = row.weights.map((weights, h) => this.weightedSum(weights, rows, h, edits));
    row.output = this.outputOf(row.heads, row.x, edits);
  }

  scoresOf(rows, i, h, seen, edits) {
    const scores = new Float64Array(seen);
    if (!headEdits(edits, this.layer, h).scores) return scores;
    for (let j = 0; j < seen; j++) scores[j] = this.scoreOf(rows, i, j, h);
    return scores;
  }

  /** scale * q_i k_j^T, whether i may attend to j or not. */
  scoreOf(rows, i, j, h) {
    return this.scale * dot(rows[i].q[h], shared(rows[j].k, h, this.count));
  }

  /** Logits with mask, window and ALiBi's bias, over the temperature of the head. */
  masked(values, i, h, edits) {
    const { temperature } = headEdits(edits, this.layer, h);
    return values.map((value, j) => (value + this.bias(i, j, h, edits)) / temperature);
  }

  bias(i, j, h, edits) {
    if (edits.mask && (j > i || (this.window > 0 && j <= i - this.window))) return -Infinity;
    return -this.slopeOf(h, edits) * (i - j);
  }

  /** What ALiBi takes from a head's score for each token of distance; 0 without it. */
  slopeOf(h, edits) {
    if (this.position !== "alibi" || !edits.positions) return 0;
    return shared(this.learned_slopes ?? this.slopes, h, this.count);
  }

  weightedSum(weights, rows, h, edits) {
    const head = new Float64Array(shared(rows[0].v, h, this.count).length);
    if (headEdits(edits, this.layer, h).off) return head;
    for (let j = 0; j < weights.length; j++) {
      const v = shared(rows[j].v, h, this.count);
      for (let d = 0; d < head.length; d++) head[d] += weights[j] * v[d];
    }
    return head;
  }

  outputOf(heads, x, edits) {
    const project = edits.projection || !this.out_proj ? (y) => linear(this.out_proj, y) : (y) => y;
    return OUTPUTS[this.choices.output](this, heads, x, project);
  }

  /** What one head alone adds to the output. */
  contribution(row, h, edits) {
    const nothing = row.heads.map((head) => new Float64Array(head.length));
    const alone = nothing.map((zero, g) => (g === h ? row.heads[g] : zero));
    return add(this.outputOf(alone, row.x, edits), scaled(this.outputOf(nothing, row.x, edits), -1));
  }

  // The matrices of a head, read off by applying the maps to the rows of the identity and to 0.

  basis() {
    return Array.from({ length: this.d_in }, (_, c) => new Float64Array(this.d_in).fill(1, c, c + 1));
  }

  /** Columns of the query's and the key's matrix of every head, [heads][K] rows of C. */
  scoreFactors() {
    if (this.factors) return this.factors;
    const made = [...this.basis(), new Float64Array(this.d_in)].map((x) => SCORES[this.choices.score](this, x));
    const zero = made.pop();
    const columns = (side, g) =>
      Array.from(zero[side][g], (bias, d) => Float64Array.from(made, (pair) => pair[side][g][d] - bias));
    this.factors = [0, 1].map((side) => zero[side].map((_, g) => columns(side, g)));
    return this.factors;
  }

  /** Singular values and left singular vectors of S_h. */
  spectrum(head) {
    this.spectra ??= {};
    const [queries, keys] = this.scoreFactors();
    this.spectra[head] ??= singular(queries[head], shared(keys, head, this.count));
    return this.spectra[head];
  }

  /** S_h, row by row; undefined where there is none. */
  scoreMatrix(head) {
    if (!this.has_score_matrix) return undefined;
    const [queries, keys] = this.scoreFactors();
    const key = shared(keys, head, this.count);
    return this.basis().map((_, c) =>
      queries[head].reduce((sum, q, d) => add(sum, scaled(key[d], q[c])), new Float64Array(this.d_in)));
  }

  /** V_h O_h, row by row; undefined where a map is not linear. */
  outputMatrix(head, edits) {
    if (!this.has_output_matrix) return undefined;
    const values = (x) => shared(VALUES[this.choices.value](this, x, SCORES[this.choices.score](this, x)[1], {}), head, this.count);
    const zero = values(new Float64Array(this.d_in));
    const nothing = Array.from({ length: this.count }, () => new Float64Array(zero.length));
    const constant = this.outputOf(nothing, zero, edits);
    return this.basis().map((x) => {
      const alone = nothing.map((none, g) => (g === head ? add(values(x), scaled(zero, -1)) : none));
      return add(this.outputOf(alone, x, edits), scaled(constant, -1));
    });
  }
}

/** The one of fewer key, value or slope heads that serves query head h. */
export function shared(parts, h, count) {
  return parts[Math.floor((h * parts.length) / count)];
}
