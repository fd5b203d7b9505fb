// Numbers: weights from base64, rows of numbers, softmax, singular vectors.

export function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** Reads the numbers of a file of weights: float32, or float16 converted to float32. */
export function numbersOf(bytes, dtype) {
  if (dtype === "float32") return new Float32Array(bytes.buffer);
  return new Float32Array(new Uint16Array(bytes.buffer)).map(wide);
}

function wide(half) {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 31;
  const fraction = half & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

export const add = (a, b) => a.map((value, i) => value + b[i]);
export const scaled = (a, factor) => a.map((value) => value * factor);
export const sum = (values) => values.reduce((total, value) => total + value, 0);
export const size = (a) => Math.sqrt(dot(a, a));
/** Returns e^s_j / sum e^s_j. */
export function softmax(s) {
  let largest = -Infinity;
  for (const value of s) if (value > largest) largest = value;
  const powers = Float64Array.from(s, (value) => Math.exp(value - largest));
  const total = sum(powers);
  return powers.map((power) => power / total);
}

/** Returns singular values and left singular vectors of left right^T; both are lists of columns. */
export function singular(left, right) {
  const [rank, width] = [left.length, left[0].length];
  // With right^T = R^T Q^T, left R^T has the singular values and left vectors of left right^T.
  const columns = product(left, rank < width ? factored(right)[1] : right);
  orthogonalize(columns);
  const found = columns.map((column) => ({ value: size(column), column }));
  found.sort((a, b) => b.value - a.value);
  const largest = found[0].value || 1;
  return {
    values: found.map(({ value }) => value),
    vectors: found.map(({ value, column }) => (value > 1e-12 * largest ? scaled(column, 1 / value) : scaled(column, 0))),
  };
}

/** Returns the columns of left right^T. */
function product(left, right) {
  return Array.from(right[0], (_, c) => {
    const column = new Float64Array(left[0].length);
    left.forEach((from, k) => from.forEach((value, i) => (column[i] += value * right[k][c])));
    return column;
  });
}

/** Returns the columns of Q and of R in the QR decomposition of these columns. */
function factored(columns) {
  const Q = [];
  const R = columns.map(() => new Float64Array(columns.length));
  columns.forEach((column, l) => {
    const rest = Float64Array.from(column);
    Q.forEach((q, k) => {
      R[l][k] = dot(q, rest);
      for (let i = 0; i < rest.length; i++) rest[i] -= R[l][k] * q[i];
    });
    R[l][l] = size(rest);
    Q.push(R[l][l] > 1e-12 * size(column) ? scaled(rest, 1 / R[l][l]) : scaled(rest, 0));
  });
  return [Q, R];
}

/** Returns the coefficients of the columns whose sum is nearest to a vector. */
export function coefficients(columns, vector) {
  const [Q, R] = factored(columns);
  const parts = Q.map((q) => dot(q, vector));
  for (let k = parts.length - 1; k >= 0; k--) {
    for (let l = k + 1; l < parts.length; l++) parts[k] -= R[l][k] * parts[l];
    parts[k] = size(Q[k]) > 0 ? parts[k] / R[k][k] : 0;
  }
  return parts;
}

/** Applies one-sided Jacobi rotations in place until all columns are orthogonal. */
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
