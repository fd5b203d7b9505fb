// Numbers: weights from base64, products with one row, norms, softmax, singular vectors.
//
// A row is a Float64Array; a matrix is stored (out, in) as the model's file has it, in float32.

export function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** The numbers of a file of weights: float32, or float16 made wide. */
export function numbersOf(bytes, dtype) {
  if (dtype === "float32") return new Float32Array(bytes.buffer);
  const half = new Uint16Array(bytes.buffer);
  return Float32Array.from(half, wide);
}

function wide(half) {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 31;
  const fraction = half & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** y = x W^T + b of a layer {weight, bias}, for one row x. */
export function linear(layer, x) {
  const y = times(layer.weight, x);
  if (layer.bias) for (let r = 0; r < y.length; r++) y[r] += layer.bias.data[r];
  return y;
}

/** x W^T: the product of every row of W with x. */
export function times({ data, rows, columns }, x) {
  const y = new Float64Array(rows);
  const even = columns - (columns % 4);
  for (let r = 0, start = 0; r < rows; r++, start += columns) {
    let a = 0, b = 0, c = 0, d = 0;
    for (let i = 0; i < even; i += 4) {
      a += data[start + i] * x[i];
      b += data[start + i + 1] * x[i + 1];
      c += data[start + i + 2] * x[i + 2];
      d += data[start + i + 3] * x[i + 3];
    }
    for (let i = even; i < columns; i++) a += data[start + i] * x[i];
    y[r] = a + b + c + d;
  }
  return y;
}

/** x W, with W the rows from `first` on: the sum of rows of W weighed by x. */
export function combine({ data, columns }, first, x) {
  const y = new Float64Array(columns);
  for (let r = 0; r < x.length; r++) {
    const start = (first + r) * columns;
    for (let i = 0; i < columns; i++) y[i] += x[r] * data[start + i];
  }
  return y;
}

export const rowOf = ({ data, columns }, r) => Float64Array.from(data.subarray(r * columns, (r + 1) * columns));

/** [H D] -> H views of D numbers. */
export function split(row, heads) {
  const width = row.length / heads;
  return Array.from({ length: heads }, (_, h) => row.subarray(h * width, (h + 1) * width));
}

export function concat(rows) {
  const joined = new Float64Array(rows.reduce((total, row) => total + row.length, 0));
  let start = 0;
  for (const row of rows) {
    joined.set(row, start);
    start += row.length;
  }
  return joined;
}

export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

export const add = (a, b) => a.map((value, i) => value + b[i]);
export const scaled = (a, factor) => a.map((value) => value * factor);
export const size = (a) => Math.sqrt(dot(a, a));
export const sigmoid = (value) => 1 / (1 + Math.exp(-value));
export const logSigmoid = (value) => Math.min(value, 0) - Math.log1p(Math.exp(-Math.abs(value)));

/** e^s_j / (extra + sum e^s_j); `extra` is the power of one more logit whose weight is dropped. */
export function softmax(s, extra = -Infinity) {
  let largest = extra;
  for (const value of s) if (value > largest) largest = value;
  const powers = s.map((value) => Math.exp(value - largest));
  let sum = Math.exp(extra - largest);
  for (const power of powers) sum += power;
  for (let j = 0; j < powers.length; j++) powers[j] /= sum;
  return powers;
}

export function layerNorm(layer, x) {
  const mean = x.reduce((sum, value) => sum + value, 0) / x.length;
  const centred = x.map((value) => value - mean);
  const factor = 1 / Math.sqrt(dot(centred, centred) / x.length + 1e-5);
  return centred.map((value, i) => value * factor * layer.weight.data[i] + (layer.bias?.data[i] ?? 0));
}

export function rmsNorm(layer, x, epsilon = 1e-6) {
  const factor = 1 / Math.sqrt(dot(x, x) / x.length + epsilon);
  return x.map((value, i) => value * factor * (layer.weight?.data[i] ?? 1));
}

export const ACTIVATIONS = {
  gelu: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  relu2: (x) => Math.max(x, 0) ** 2,
};

/** Rotates coordinates d and d + D/2 by an angle that grows with position (RoPE). */
export function rope(y, position) {
  const half = y.length / 2;
  const turned = new Float64Array(y.length);
  for (let d = 0; d < half; d++) {
    const angle = position * 10000 ** (-d / half);
    const cos = Math.cos(angle), sin = Math.sin(angle);
    turned[d] = y[d] * cos - y[d + half] * sin;
    turned[d + half] = y[d] * sin + y[d + half] * cos;
  }
  return turned;
}

/** Singular values and left singular vectors of left right^T; both are lists of columns. */
export function singular(left, right) {
  const [rank, width] = [left.length, left[0].length];
  const columns = rank < width ? withTriangle(left, triangle(right)) : product(left, right);
  orthogonalize(columns);
  const found = columns.map((column) => ({ value: size(column), column }));
  found.sort((a, b) => b.value - a.value);
  const largest = found[0].value || 1;
  return {
    values: found.map(({ value }) => value),
    vectors: found.map(({ value, column }) => (value > 1e-12 * largest ? scaled(column, 1 / value) : scaled(column, 0))),
  };
}

/** The columns of left right^T. */
function product(left, right) {
  return Array.from(right[0], (_, c) => {
    const column = new Float64Array(left[0].length);
    left.forEach((from, k) => from.forEach((value, i) => (column[i] += value * right[k][c])));
    return column;
  });
}

/** R of the QR factors of the matrix with these columns: R[k][l] belongs to columns k <= l. */
function triangle(columns) {
  const made = [];
  const R = columns.map(() => new Float64Array(columns.length));
  columns.forEach((column, l) => {
    const rest = Float64Array.from(column);
    made.forEach((q, k) => {
      R[k][l] = dot(q, rest);
      for (let i = 0; i < rest.length; i++) rest[i] -= R[k][l] * q[i];
    });
    R[l][l] = size(rest);
    made.push(R[l][l] > 1e-12 * size(column) ? scaled(rest, 1 / R[l][l]) : scaled(rest, 0));
  });
  return R;
}

/** The columns of left R^T, which has the singular values and left vectors of left right^T. */
function withTriangle(left, R) {
  return R.map((row) => {
    const column = new Float64Array(left[0].length);
    left.forEach((from, l) => from.forEach((value, i) => (column[i] += value * row[l])));
    return column;
  });
}

/** One-sided Jacobi rotations, in place, until every two columns are orthogonal. */
function orthogonalize(columns) {
  for (let sweep = 0, turned = true; turned && sweep < 40; sweep++) {
    turned = false;
    for (let k = 0; k < columns.length; k++)
      for (let l = k + 1; l < columns.length; l++) turned = turn(columns[k], columns[l]) || turned;
  }
}

function turn(p, q) {
  const pp = dot(p, p), qq = dot(q, q), pq = dot(p, q);
  if (Math.abs(pq) <= 1e-11 * Math.sqrt(pp * qq) || pq === 0) return false;
  const zeta = (qq - pp) / (2 * pq);
  const t = (zeta < 0 ? -1 : 1) / (Math.abs(zeta) + Math.sqrt(1 + zeta * zeta));
  const cos = 1 / Math.sqrt(1 + t * t), sin = cos * t;
  for (let i = 0; i < p.length; i++) {
    const a = p[i], b = q[i];
    p[i] = cos * a - sin * b;
    q[i] = sin * a + cos * b;
  }
  return true;
}
