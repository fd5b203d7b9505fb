// Runs a traced MLX graph: its primitives, on arrays of float32 numbers. See mlx_attn/explore/traced.py.
//
// An array has `data`, and a shape and strides as in MLX: a transposed, broadcast or sliced array is
// another view of the same data. Booleans and integers are stored as numbers too.

class Tensor {
  constructor(data, shape, strides = stridesOf(shape), offset = 0) {
    Object.assign(this, { data, shape, strides, offset });
  }
  get size() {
    return sizeOf(this.shape);
  }
  /** Returns the array with contiguous numbers. */
  dense() {
    if (this.data.length === this.size && sameStrides(this)) return this;
    const made = new Float32Array(this.size);
    copyInto(made, this);
    return new Tensor(made, this.shape);
  }
  copy() {
    const { data, shape } = this.dense();
    return new Tensor(data.slice(), shape);
  }
  view(shape, strides, offset = this.offset) {
    return new Tensor(this.data, shape, strides, offset);
  }
  reshaped(shape) {
    return new Tensor(this.dense().data, shape);
  }
}

export const sizeOf = (shape) => shape.reduce((product, length) => product * length, 1);

function stridesOf(shape) {
  const strides = new Array(shape.length);
  for (let axis = shape.length - 1, step = 1; axis >= 0; step *= shape[axis--]) strides[axis] = step;
  return strides;
}

function sameStrides({ shape, strides }) {
  for (let axis = shape.length - 1, step = 1; axis >= 0; step *= shape[axis--])
    if (shape[axis] > 1 && strides[axis] !== step) return false;
  return true;
}

/** Calls `row(at, offsets)` for every row along the last axis; `offsets` is its start in each array. */
function eachRow(shape, arrays, row) {
  const outer = shape.slice(0, -1);
  const rows = sizeOf(outer);
  const width = shape.at(-1) ?? 1;
  const at = outer.map(() => 0);
  const offsets = arrays.map(({ offset }) => offset);
  for (let r = 0; r < rows; r++) {
    row(r * width, offsets, width);
    for (let axis = outer.length - 1; axis >= 0; axis--) {
      at[axis]++;
      arrays.forEach(({ strides }, n) => (offsets[n] += strides[axis]));
      if (at[axis] < outer[axis]) break;
      arrays.forEach(({ strides }, n) => (offsets[n] -= strides[axis] * outer[axis]));
      at[axis] = 0;
    }
  }
}

function copyInto(made, a) {
  const step = a.strides.at(-1) ?? 0;
  eachRow(a.shape, [a], (to, [from], width) => {
    for (let i = 0; i < width; i++, from += step) made[to + i] = a.data[from];
  });
}

const unary = (f) => ([a]) => {
  const { data, shape } = a.dense();
  const made = new Float32Array(data.length);
  for (let i = 0; i < made.length; i++) made[i] = f(data[i]);
  return new Tensor(made, shape);
};

const binary = (f) => ([a, b]) => {
  const made = new Float32Array(a.size);
  const [p, q] = [a.data, b.data];
  const [s, t] = [a.strides.at(-1) ?? 0, b.strides.at(-1) ?? 0];
  eachRow(a.shape, [a, b], (to, [i, j], width) => {
    for (let n = 0; n < width; n++, i += s, j += t) made[to + n] = f(p[i], q[j]);
  });
  return new Tensor(made, a.shape);
};

/** Multiplies matrices in the last two axes; b may be a transposed view. */
function matmul([a, b], [more, alpha = 1, beta = 1] = []) {
  const [M, K] = a.shape.slice(-2), N = b.shape.at(-1);
  const outer = a.shape.slice(0, -2);
  const made = new Float32Array(sizeOf(outer) * M * N);
  const left = a.strides.at(-1) === 1 ? a : a.dense();
  const isTransposed = b.strides.at(-2) === 1 && b.strides.at(-1) !== 1;
  const right = isTransposed || b.strides.at(-1) === 1 ? b : b.dense();
  const multiply = isTransposed ? byColumns : byRows;
  const stacked = (t) => ({ offset: t.offset, strides: [...t.strides.slice(0, -2), 0] });
  eachRow([...outer, 1], [stacked(left), stacked(right)], (n, [i, j]) => {
    multiply(made, n * M * N, left.data, i, left.strides.at(-2), right.data, j, isTransposed ? right.strides.at(-1) : right.strides.at(-2), M, K, N);
  });
  const product = new Tensor(made, [...outer, M, N]);
  if (!more) return product;
  return binary((x, c) => alpha * x + beta * c)([product, more]);
}

/** Computes two rows and four columns at a time: eight products per six numbers read. */
function byColumns(made, to, a, i, rowA, b, j, columnB, M, K, N) {
  for (let m = 0; m < M; m += 2) {
    const first = i + m * rowA, second = m + 1 < M ? first + rowA : first;
    for (let n = 0; n < N; n += 4) {
      const c0 = j + n * columnB;
      const c1 = n + 1 < N ? c0 + columnB : c0, c2 = n + 2 < N ? c1 + columnB : c0, c3 = n + 3 < N ? c2 + columnB : c0;
      let p0 = 0, p1 = 0, p2 = 0, p3 = 0, q0 = 0, q1 = 0, q2 = 0, q3 = 0;
      for (let k = 0; k < K; k++) {
        const x = a[first + k], y = a[second + k];
        const u = b[c0 + k], v = b[c1 + k], w = b[c2 + k], z = b[c3 + k];
        p0 += x * u; p1 += x * v; p2 += x * w; p3 += x * z;
        q0 += y * u; q1 += y * v; q2 += y * w; q3 += y * z;
      }
      const at = to + m * N + n, below = at + N;
      made[at] = p0;
      if (n + 1 < N) made[at + 1] = p1;
      if (n + 2 < N) made[at + 2] = p2;
      if (n + 3 < N) made[at + 3] = p3;
      if (m + 1 === M) continue;
      made[below] = q0;
      if (n + 1 < N) made[below + 1] = q1;
      if (n + 2 < N) made[below + 2] = q2;
      if (n + 3 < N) made[below + 3] = q3;
    }
  }
}

function byRows(made, to, a, i, rowA, b, j, rowB, M, K, N) {
  for (let m = 0; m < M; m++, i += rowA, to += N)
    for (let k = 0; k < K; k++) {
      const x = a[i + k];
      if (x === 0) continue;
      for (let n = 0, start = j + k * rowB; n < N; n++) made[to + n] += x * b[start + n];
    }
}

/** Applies `make` to every row along an axis; it returns a number, or a whole row with `keep`. */
function alongAxis(a, axis, make, keep) {
  const order = [...a.shape.keys()].filter((n) => n !== axis);
  const moved = [...order, axis];
  const { data, shape, strides } = a.view(moved.map((n) => a.shape[n]), moved.map((n) => a.strides[n])).dense();
  const width = shape.at(-1), rows = data.length / width;
  const made = new Float32Array(keep ? data.length : rows);
  for (let r = 0; r < rows; r++) {
    const row = data.slice(r * width, (r + 1) * width);
    if (keep) made.set(make(row), r * width);
    else made[r] = make(row);
  }
  if (!keep) return new Tensor(made, a.shape.with(axis, 1));
  return new Tensor(made, a.shape, a.shape.map((_, n) => strides[moved.indexOf(n)]));
}

const FOLDS = [
  (row) => +row.every(Boolean),
  (row) => +row.some(Boolean),
  (row) => row.reduce((sum, x) => sum + x, 0),
  (row) => row.reduce((product, x) => product * x, 1),
  (row) => row.reduce((least, x) => Math.min(least, x), Infinity),
  (row) => row.reduce((most, x) => Math.max(most, x), -Infinity),
];
const SCANS = [Math.max, Math.min, (x, y) => x + y, (x, y) => x * y];
const JOINS = [...SCANS, (_, y) => y];
const NEUTRAL = [-Infinity, Infinity, 0, 1];

const scan = (kind, isReversed, isInclusive) => (row) => {
  if (isReversed) row.reverse();
  let sum = NEUTRAL[kind];
  for (let i = 0; i < row.length; i++) {
    const before = sum;
    sum = SCANS[kind](sum, row[i]);
    row[i] = isInclusive ? sum : before;
  }
  return isReversed ? row.reverse() : row;
};

function roundHalfToEven(x) {
  const up = Math.round(x);
  return up - x === 0.5 && up % 2 ? up - 1 : up;
}

function logAddExp(x, y) {
  const most = Math.max(x, y);
  return most === -Infinity ? most : most + Math.log1p(Math.exp(-Math.abs(x - y)));
}

/** Functions of inputs, arguments and output shape, by primitive. */
const PRIMITIVES = {
  // Element by element.
  Abs: unary(Math.abs),
  Cos: unary(Math.cos),
  Exp: unary(Math.exp),
  Expm1: unary(Math.expm1),
  Floor: unary(Math.floor),
  Ceil: unary(Math.ceil),
  Log: (inputs, [base]) => unary([Math.log2, Math.log10, Math.log][base])(inputs),
  Log1p: unary(Math.log1p),
  LogicalNot: unary((x) => +!x),
  Negative: unary((x) => -x),
  Round: unary(roundHalfToEven),
  Sigmoid: unary((x) => 1 / (1 + Math.exp(-x))),
  Sign: unary(Math.sign),
  Sin: unary(Math.sin),
  Sqrt: (inputs, [isReciprocal]) => unary(isReciprocal ? (x) => 1 / Math.sqrt(x) : Math.sqrt)(inputs),
  Square: unary((x) => x * x),
  Tanh: unary(Math.tanh),
  AsType: ([a], [kind]) => (kind === "float" ? a : unary(kind === "bool" ? (x) => +(x !== 0) : Math.trunc)([a])),
  Add: binary((x, y) => x + y),
  Divide: binary((x, y) => x / y),
  Equal: binary((x, y) => +(x === y)),
  NotEqual: binary((x, y) => +(x !== y)),
  FloorDivide: binary((x, y) => Math.floor(x / y)),
  Greater: binary((x, y) => +(x > y)),
  GreaterEqual: binary((x, y) => +(x >= y)),
  Less: binary((x, y) => +(x < y)),
  LessEqual: binary((x, y) => +(x <= y)),
  LogAddExp: binary(logAddExp),
  LogicalAnd: binary((x, y) => +(x && y)),
  LogicalOr: binary((x, y) => +(x || y)),
  Maximum: binary((x, y) => (x > y || Number.isNaN(x) ? x : y)),
  Minimum: binary((x, y) => (x < y || Number.isNaN(x) ? x : y)),
  Multiply: binary((x, y) => x * y),
  Power: binary((x, y) => x ** y),
  Remainder: binary((x, y) => x - y * Math.floor(x / y)),
  Subtract: binary((x, y) => x - y),
  Select([which, a, b], _, shape) {
    const [p, q, r] = [which, a, b].map((one) => one.dense().data);
    return new Tensor(p.map((flag, i) => (flag ? q[i] : r[i])), shape);
  },
  // Other views of the same numbers.
  Broadcast([a], _, shape) {
    const missing = shape.length - a.shape.length;
    return a.view(shape, shape.map((_, n) => (n < missing || a.shape[n - missing] === 1 ? 0 : a.strides[n - missing])));
  },
  ExpandDims: ([a], _, shape) => a.reshaped(shape),
  Flatten: ([a], _, shape) => a.reshaped(shape),
  Full: ([a]) => a,
  Reshape: ([a], _, shape) => a.reshaped(shape),
  Squeeze: ([a], _, shape) => a.reshaped(shape),
  Split([a], [places, axis]) {
    const ends = [...places, a.shape[axis]];
    return ends.map((end, n) => {
      const start = n ? ends[n - 1] : 0;
      return a.view(a.shape.with(axis, end - start), a.strides, a.offset + start * a.strides[axis]);
    });
  },
  Slice([a], [start, , step], shape) {
    const offset = start.reduce((sum, at, axis) => sum + at * a.strides[axis], a.offset);
    return a.view(shape, a.strides.map((stride, axis) => stride * step[axis]), offset);
  },
  Transpose: ([a], [axes], shape) => a.view(shape, axes.map((axis) => a.strides[axis])),
  Unflatten: ([a], _, shape) => a.reshaped(shape),
  // New arrays.
  Arange: (_, [from, , step], shape) => new Tensor(Float32Array.from({ length: shape[0] }, (_, i) => from + i * step), shape),
  ArgPartition: ([a], [, axis]) => PRIMITIVES.ArgSort([a], [axis]),
  ArgReduce: ([a], [kind, axis]) => alongAxis(a, axis, (row) => row.indexOf(FOLDS[kind + 4](row))),
  ArgSort: ([a], [axis]) => alongAxis(a, axis, (row) => Array.from(row.keys()).sort((i, j) => row[i] - row[j] || i - j), true),
  BitwiseBinary: (inputs, [kind]) => binary([(x, y) => x & y, (x, y) => x | y, (x, y) => x ^ y, (x, y) => x << y, (x, y) => x >> y][kind])(inputs),
  Concatenate(parts, [axis], shape) {
    const made = new Tensor(new Float32Array(sizeOf(shape)), shape);
    let at = 0;
    for (const part of parts) {
      writeInto(made.view(part.shape, made.strides, at * made.strides[axis]), part);
      at += part.shape[axis];
    }
    return made;
  },
  Gather([a, ...indices], [axes, sizes], shape) {
    const made = new Tensor(new Float32Array(sizeOf(shape)), shape);
    const places = indices.map((index) => index.dense().data);
    const width = sizeOf(sizes);
    for (let i = 0; i < places[0].length; i++) {
      const offset = axes.reduce((sum, axis, n) => sum + places[n][i] * a.strides[axis], a.offset);
      writeInto(new Tensor(made.data, sizes, stridesOf(sizes), i * width), a.view(sizes, a.strides, offset));
    }
    return made;
  },
  GatherAxis([a, index], [axis], shape) {
    const other = a.view(shape, a.strides.map((stride, n) => (n === axis ? 0 : stride)));
    const places = index.dense().data;
    const made = new Float32Array(places.length), strides = stridesOf(shape);
    for (let i = 0; i < made.length; i++) {
      const from = shape.reduce((sum, length, n) => sum + (Math.floor(i / strides[n]) % length) * other.strides[n], a.offset);
      made[i] = a.data[from + places[i] * a.strides[axis]];
    }
    return new Tensor(made, shape);
  },
  Pad([a, value], [axes, low], shape) {
    const made = new Tensor(new Float32Array(sizeOf(shape)).fill(value.dense().data[0]), shape);
    const offset = axes.reduce((sum, axis, n) => sum + low[n] * made.strides[axis], 0);
    writeInto(made.view(a.shape, made.strides, offset), a);
    return made;
  },
  Scatter([a, ...indices], [kind, axes]) {
    const updates = indices.pop(), made = a.copy();
    const sizes = updates.shape.slice(indices[0].shape.length), places = indices.map((index) => index.dense().data);
    const part = updates.dense(), width = sizeOf(sizes);
    for (let i = 0; i < places[0].length; i++) {
      const offset = axes.reduce((sum, axis, n) => sum + places[n][i] * made.strides[axis], 0);
      writeInto(made.view(sizes, made.strides, offset), part.view(sizes, stridesOf(sizes), i * width), JOINS[kind]);
    }
    return made;
  },
  SliceUpdate([a, update], [kind, start, , step]) {
    const made = a.copy();
    const offset = start.reduce((sum, at, axis) => sum + at * made.strides[axis], 0);
    writeInto(made.view(update.shape, made.strides.map((stride, axis) => stride * step[axis]), offset), update, JOINS[kind]);
    return made;
  },
  // Sums and products.
  AddMM: ([a, b, c], [alpha, beta]) => matmul([a, b], [c, alpha, beta]),
  LogSumExp: ([a]) => alongAxis(a, a.shape.length - 1, (row) => logSumExp(row)),
  Matmul: (inputs) => matmul(inputs),
  Reduce: ([a], [kind, axes]) => axes.reduce((made, axis) => alongAxis(made, axis, FOLDS[kind]), a),
  Scan: ([a], [kind, axis, isReversed, isInclusive]) => alongAxis(a, axis, scan(kind, isReversed, isInclusive), true),
  Partition: ([a], [, axis]) => PRIMITIVES.Sort([a], [axis]),
  Sort: ([a], [axis]) => alongAxis(a, axis, (row) => row.sort(), true),
  Softmax: ([a]) => alongAxis(a, a.shape.length - 1, softmaxOf, true),
};

function writeInto(target, source, join = JOINS.at(-1)) {
  const [s, t] = [target.strides.at(-1) ?? 0, source.strides.at(-1) ?? 0];
  eachRow(target.shape, [target, source], (_, [to, from], width) => {
    for (let i = 0; i < width; i++, to += s, from += t) target.data[to] = join(target.data[to], source.data[from]);
  });
}

function softmaxOf(row) {
  let most = -Infinity, sum = 0;
  for (let i = 0; i < row.length; i++) if (row[i] > most) most = row[i];
  for (let i = 0; i < row.length; i++) sum += row[i] = Math.exp(row[i] - most);
  for (let i = 0; i < row.length; i++) row[i] /= sum;
  return row;
}

function logSumExp(row) {
  const most = row.reduce((a, b) => Math.max(a, b), -Infinity);
  return most + Math.log(row.reduce((sum, x) => sum + Math.exp(x - most), 0));
}

export const tensorOf = (data, shape) => new Tensor(data, shape);

/**
 * A traced function. A node is [primitive, arguments, inputs, outputs]: inputs are ids of arrays, outputs
 * are ids with shapes. Nodes that depend only on constants run once.
 */
export class Graph {
  constructor({ inputs, outputs, nodes, constants }, arrays) {
    Object.assign(this, { inputs, outputs });
    this.known = new Map(constants.map(([id, place]) => [id, arrays.at(place)]));
    this.nodes = nodes.filter((node) => !node[2].every((id) => this.known.has(id)) || evaluate(node, this.known));
  }

  /** Returns the outputs by name, for one list of numbers per input. */
  run(given) {
    const known = new Map(this.known);
    this.inputs.forEach(([id, shape], n) => known.set(id, new Tensor(Float32Array.from(given[n]), shape)));
    for (const node of this.nodes) evaluate(node, known);
    return Object.fromEntries(Object.entries(this.outputs).map(([name, id]) => [name, known.get(id).dense()]));
  }
}

function evaluate([name, args, inputs, outputs], known) {
  const made = PRIMITIVES[name](inputs.map((id) => known.get(id)), args, outputs[0][1]);
  outputs.forEach(([id], n) => known.set(id, Array.isArray(made) ? made[n] : made));
}
