// The choices of the maps of attention by name, for one token: mlx_attn/attention/maps.py, recent.py
// and hooks.py in JavaScript. `a` is a layer: its sizes, and its weights under their names.
import { ACTIVATIONS, add, combine, concat, dot, layerNorm, linear, logSigmoid, rmsNorm, rowOf, scaled, sigmoid, softmax, split } from "./tensor.js";

/** x -> [queries, keys] */
export const SCORES = {
  separate: (a, x) => [split(linear(a.W_query, x), a.n_heads), split(linear(a.W_key, x), a.n_kv_heads)],
  merged: (a, x) => [split(linear(a.S, x), a.n_heads), [x]],
  no_query: (a, x) => [split(x, a.n_heads), split(linear(a.W_key, x), a.n_kv_heads)],
  nonlinear_query(a, x) {
    const narrow = linear(a.W_down, rmsNorm(a.norm_in, x, 1e-5)).map(ACTIVATIONS.gelu);
    const bent = layerNorm(a.norm_out, linear(a.W_up, narrow));
    return [split(scaled(add(x, bent), 0.5), a.n_heads), split(linear(a.W_key, x), a.n_kv_heads)];
  },
  no_key: (a, x) => [split(linear(a.W_query, x), a.n_heads), split(x, a.n_kv_heads)],
  shared(a, x) {
    const q = split(linear(a.W_query, x), a.n_heads);
    return [q, q];
  },
  collaborative(a, x) {
    const q = linear(a.W_query, x);
    const heads = Array.from({ length: a.n_heads }, (_, h) => rowOf(a.mixing, h).map((m, i) => m * q[i]));
    return [heads, [linear(a.W_key, x)]];
  },
  latent(a, x) {
    const heads = split(linear(a.W_query, x), a.n_heads);
    return [heads.map((q, h) => combine(a.W_up_key.weight, h * q.length, q)), [linear(a.W_latent, x)]];
  },
  paired: (a, x) => [split(linear(a.W_query, x), 2 * a.n_heads), split(linear(a.W_key, x), a.n_kv_heads)],
  off: (a) => [Array.from({ length: a.n_heads }, () => new Float64Array(2)), [new Float64Array(2)]],
};

const linearValue = (a, x) => split(linear(a.W_value, x), a.n_kv_heads);

/** (x, keys, carry) -> values; `carry` has the token and the first layer's values of it. */
export const VALUES = {
  linear: linearValue,
  whole: (a, x) => [x],
  identity: (a, x) => split(x, a.n_kv_heads),
  key: (a, x, k) => k,
  from_key: (a, x, k) => linearValue(a, concat(k)),
  latent: (a, x, k) => split(linear(a.W_up_value, k[0]), a.n_kv_heads),
  residual(a, x, k, carry) {
    const v = linearValue(a, x);
    carry.first ??= v;
    const [first, own] = a.value_mix.data;
    return v.map((row, g) => add(scaled(carry.first[g], first), scaled(row, own)));
  },
  bank: (a, x, k, carry) => split(rowOf(a.value_table.weight, carry.token), a.n_kv_heads),
  embedding(a, x, k, carry) {
    const table = scaled(rowOf(a.value_table.weight, carry.token), a.value_gain.data[0]);
    return split(add(linear(a.W_value, x), table), a.n_kv_heads);
  },
};

const gates = (a, x) => linear(a.W_gate, x).map(sigmoid);

/** (heads, x, project) -> y; `project` is out_proj, or concatenation alone where it is switched off. */
export const OUTPUTS = {
  linear: (a, heads, x, project) => project(concat(heads)),
  none: (a, heads) => (a.residual_gain ? scaled(concat(heads), a.residual_gain.data[0]) : concat(heads)),
  merged: (a, heads) => linear(a.VO, concat(heads)),
  gated(a, heads, x, project) {
    const gate = gates(a, x);
    return project(concat(heads).map((value, i) => value * gate[i]));
  },
  head_gated(a, heads, x, project) {
    const gate = gates(a, x);
    return project(concat(heads.map((head, h) => scaled(head, gate[h]))));
  },
  differential(a, heads, x, project) {
    const weight = linear(a.W_lambda, x).map(sigmoid);
    const pairs = Array.from(weight, (w, h) => add(heads[2 * h], scaled(heads[2 * h + 1], -w)));
    return project(concat(pairs));
  },
  exclusive(a, heads, x, project) {
    const v = VALUES[a.choices.value](a, x);
    const others = heads.map((head, h) => {
      const own = v[Math.floor((h * v.length) / heads.length)];
      return add(head, scaled(own, -dot(head, own) / (dot(own, own) + 1e-12)));
    });
    return project(concat(others));
  },
};

const mixtures = (matrix, s) => s.map((_, h) => rowOf(matrix, h).reduce((sum, p, g) => add(sum, scaled(s[g], p)), new Float64Array(s[h].length)));

/** Hooks on the scores of one query: (s, i, rows) -> s with s[h][j]; `rows` are the tokens' records. */
export const LOGITS = {
  temperature: (a, s) => s.map((row, h) => scaled(row, Math.exp(a.log_temperature.data[h]))),
  talking: (a, s) => mixtures(a.talk_logits, s),
  self_mask: (a, s, i) => s.map((row) => row.map((value, j) => (j === i ? -1e9 : value))),
  forget: (a, s, i, rows) => s.map((row, h) => row.map((value, j) => value + rows[i].gates[h] - rows[j].gates[h])),
};

/** The sum of the forgetting gates up to a token, from that of the token before it. */
export function gatesUpTo(a, x, before) {
  const log = linear(a.W_forget, x).map(logSigmoid);
  return before ? add(log, before) : log;
}

/** From the logits of one query, -Infinity where a key is masked, to attention weights. */
export const MIXING = {
  softmax: (a, s) => s.map((row) => softmax(row)),
  uniform: (a, s) =>
    s.map((row) => {
      const seen = row.map((value) => (value > -Infinity ? 1 : 0));
      return scaled(seen, 1 / seen.reduce((sum, one) => sum + one, 0));
    }),
  off_by_one: (a, s) => s.map((row) => softmax(row, 0)),
  sink: (a, s) => s.map((row, h) => softmax(row, a.sink.data[h])),
  sigmoid: (a, s) => s.map((row, h) => row.map((value) => sigmoid(value + a.weight_bias.data[h]))),
  talking: (a, s) => mixtures(a.talk_weights, s.map((row) => softmax(row))),
};
