"""Between one wide vector and its heads.

For a single token, as in decoding, the axes to be exchanged are one element long.
"""

from typing import Any, Protocol, TypeVar, runtime_checkable

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from jaxtyping import Float

from mlx_attn.attention.config import AttentionConfig


def split_heads(
    y: Float[mx.array, "B T width"], n_heads: int
) -> Float[mx.array, "B {n_heads} T head_dim"]:
    """Cut the last axis into heads: [B, T, H D] -> [B, H, T, D]."""
    if y.shape[1] == 1:
        return y.reshape(y.shape[0], n_heads, 1, -1)
    return y.reshape(*y.shape[:2], n_heads, -1).transpose(0, 2, 1, 3)


def join_heads(y: Float[mx.array, "B H T D"]) -> Float[mx.array, "B T width"]:
    """Concatenate heads, the inverse of `split_heads`: [B, H, T, D] -> [B, T, H D]."""
    if y.shape[2] == 1:
        return y.reshape(y.shape[0], 1, -1)
    return y.transpose(0, 2, 1, 3).flatten(2)


@runtime_checkable
class Draw(Protocol):
    """Makes the starting weight of a linear map."""

    def __call__(self, rows: int, columns: int, residual: bool = False) -> mx.array:
        """A (rows, columns) = (out, in) matrix; `residual` marks a map that ends a branch."""
        ...


def linear_draw(rows: int, columns: int, residual: bool = False) -> mx.array:
    """The uniform start of PyTorch's and MLX's Linear: within 1 / sqrt(columns) of 0."""
    bound = columns**-0.5
    return mx.random.uniform(-bound, bound, (rows, columns))


def start_merged(
    start: str, product: Float[mx.array, "rows columns"], spread: mx.array
) -> Float[mx.array, "rows columns"]:
    """The start of a merged matrix: the product of its factors, or Gaussian with its spread.

    Args:
        start: "product" or "matched".
        product: The product of the two factors that the matrix replaces.
        spread: Standard deviation of one element of the product, sqrt(head_dim) s_1 s_2.
    """
    if start == "product":
        return product
    return mx.random.normal(product.shape) * spread


def factor_spread(first: mx.array, second: mx.array, head_dim: int) -> mx.array:
    """Standard deviation of an element of a product of two random factors with inner size D."""
    return head_dim**0.5 * mx.std(first) * mx.std(second)


Array = TypeVar("Array", mx.array, np.ndarray)


def merge_query_key(
    W_query: Float[Array, "width C"], W_key: Float[Array, "kv_width C"], n_heads: int
) -> Float[Array, "merged C"]:
    """The merged score matrix S_h = W_query_h W_key_h^T of every head, as the weight of `S`.

    (x_i W_query_h) . (x_j W_key_h) = (x_i S_h) . x_j. Rows h C..(h+1) C hold head h. A key head
    that serves several query heads is used for each of them.

    Args:
        W_query: Stored weight of the query map, n_heads * head_dim rows.
        W_key: Stored weight of the key map, n_kv_heads * head_dim rows.
        n_heads: Number of query heads H.

    Returns:
        [H C, C], so that `x @ S.T` holds q_h in columns h C..(h+1) C.
    """
    C, head_dim = W_query.shape[1], W_query.shape[0] // n_heads
    key = W_key.reshape(-1, 1, head_dim, C)
    query = W_query.reshape(key.shape[0], -1, head_dim, C)
    return (key.swapaxes(2, 3) @ query).reshape(n_heads * C, C)


def merge_value_output(
    W_value: Float[Array, "kv_width d_in"],
    out_proj: Float[Array, "d_out width"],
    n_heads: int,
) -> Float[Array, "d_out merged"]:
    """The merged output matrix V_h O_h of every head, as the weight of `VO`.

    sum_h (softmax_h x) W_value_h O_h = sum_h (softmax_h x) VO_h, where O_h are the rows of
    out_proj that read head h. Columns h C..(h+1) C hold head h. A value head that serves several
    query heads is used for each of them.

    Returns:
        [d_out, H C], so that `concat_h(softmax_h x) @ VO.T` is the layer's output.
    """
    d_out, head_dim = out_proj.shape[0], out_proj.shape[1] // n_heads
    value = W_value.reshape(-1, 1, head_dim, W_value.shape[1])
    output = out_proj.reshape(d_out, value.shape[0], -1, head_dim).transpose(1, 2, 0, 3)
    return (output @ value).reshape(n_heads, d_out, -1).swapaxes(0, 1).reshape(d_out, -1)


class ShrunkLinear(nn.Module):
    """y_h = x[kept_h] + x[rest_h] R_h, for each head h: D coordinates of x pass as they are.

    Args:
        C: Width of x.
        n_heads: Number of heads H.
        head_dim: Width D of a head, less than C.
        bias: Whether a bias is added.

    Attributes:
        weight: The matrices R_h as (out, in): [H D, C - D], head h in rows h D..(h+1) D.
        places: Where coordinate c of x is in (kept_h, rest_h): [H, C] integers, not trained.
    """

    def __init__(self, C: int, n_heads: int, head_dim: int, bias: bool):
        super().__init__()
        self.weight = mx.zeros((n_heads * head_dim, C - head_dim))
        self.places = (mx.arange(C)[None] - head_dim * mx.arange(n_heads)[:, None]) % C
        if bias:
            self.bias = mx.zeros((n_heads * head_dim,))
        self.freeze(recurse=False, keys=["places"])

    def __call__(self, x: Float[mx.array, "B T C"]) -> Float[mx.array, "B T width"]:
        """The heads of x, side by side."""
        y = x @ self.whole().T
        return y + self.bias if "bias" in self else y

    def whole(self) -> Float[mx.array, "width C"]:
        """The matrix with the identity written out, as (out, in)."""
        n_heads, C = self.places.shape
        rest = self.weight.reshape(n_heads, -1, self.weight.shape[1])
        head_dim = rest.shape[1]
        kept = mx.broadcast_to(mx.eye(head_dim, dtype=rest.dtype), (n_heads, head_dim, head_dim))
        whole = mx.concatenate([kept, rest], axis=2)
        places = mx.broadcast_to(self.places[:, None], whole.shape)
        return mx.take_along_axis(whole, places, axis=2).reshape(-1, C)


Queries = Float[mx.array, "B H T D"]
Keys = Float[mx.array, "B key_heads T D"]


@runtime_checkable
class Score(Protocol):
    """One way to make queries and keys."""

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        """The trained parts by name."""
        ...

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        """The starting weights of those parts that are linear maps, by name."""
        ...

    def key_shape(self, config: AttentionConfig) -> tuple[int, int]:
        """How many key heads there are, and how wide each is."""
        ...

    def __call__(self, layers: Any, x: Float[mx.array, "B T C"]) -> tuple[Queries, Keys]:
        """Queries and keys of x."""
        ...


class Separate:
    """q_h = x W_query_h, k_h = x W_key_h: the book's form, S_h of rank at most head_dim."""

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        return {"W_query": _query_layer(config), "W_key": _key_layer(config)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        C, D = config.d_in, config.head_dim
        return {"W_query": draw(config.n_heads * D, C), "W_key": draw(config.n_kv_heads * D, C)}

    def key_shape(self, config: AttentionConfig) -> tuple[int, int]:
        return config.n_kv_heads, config.head_dim

    def __call__(self, layers: Any, x: Float[mx.array, "B T C"]) -> tuple[Queries, Keys]:
        config = layers.config
        q = split_heads(layers.W_query(x), config.n_heads)
        return q, split_heads(layers.W_key(x), config.n_kv_heads)


class NoQuery(Separate):
    """q_h = x[slice h], k_h = x W_key_h: S_h = I_h W_key_h^T (Karbevski, arXiv:2510.23912)."""

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        return {"W_key": _key_layer(config)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        return {"W_key": draw(config.n_kv_heads * config.head_dim, config.d_in)}

    def __call__(self, layers: Any, x: Float[mx.array, "B T C"]) -> tuple[Queries, Keys]:
        config = layers.config
        return split_heads(x, config.n_heads), split_heads(layers.W_key(x), config.n_kv_heads)


class NoKey(Separate):
    """q_h = x W_query_h, k_h = x[slice h]: the mirror image of `NoQuery`."""

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        return {"W_query": _query_layer(config)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        return {"W_query": draw(config.n_heads * config.head_dim, config.d_in)}

    def __call__(self, layers: Any, x: Float[mx.array, "B T C"]) -> tuple[Queries, Keys]:
        config = layers.config
        return split_heads(layers.W_query(x), config.n_heads), split_heads(x, config.n_kv_heads)


class Shared(NoKey):
    """q_h = k_h = x W_query_h: S_h is symmetric, positive semidefinite (arXiv:2001.04451)."""

    def __call__(self, layers: Any, x: Float[mx.array, "B T C"]) -> tuple[Queries, Keys]:
        q = split_heads(layers.W_query(x), layers.config.n_heads)
        return q, q


class Collaborative(Separate):
    """S_h = W_query diag(m_h) W_key^T: shared maps, mixed per head (arXiv:2006.16362).

    The key is one, n_heads * head_dim wide, and serves all heads.
    """

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        C, width = config.d_in, config.n_heads * config.head_dim
        return {
            "W_query": nn.Linear(C, width, bias=config.qkv_bias),
            "W_key": nn.Linear(C, width, bias=config.qkv_bias),
            "mixing": head_blocks(config.n_heads, config.head_dim),
        }

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        C, width = config.d_in, config.n_heads * config.head_dim
        return {"W_query": draw(width, C), "W_key": draw(width, C)}

    def key_shape(self, config: AttentionConfig) -> tuple[int, int]:
        return 1, config.n_heads * config.head_dim

    def __call__(self, layers: Any, x: Float[mx.array, "B T C"]) -> tuple[Queries, Keys]:
        q = layers.W_query(x)[:, None] * layers.mixing[:, None]
        return q, layers.W_key(x)[:, None]


class ShrunkKey(Separate):
    """k_h = x[kept_h] + x[rest_h] R_h: W_key less what W_query can do as well."""

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        bias = config.qkv_bias
        W_key = ShrunkLinear(config.d_in, config.n_kv_heads, config.head_dim, bias)
        return {"W_query": _query_layer(config), "W_key": W_key}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        C, D = config.d_in, config.head_dim
        return {
            "W_query": draw(config.n_heads * D, C),
            "W_key": draw(config.n_kv_heads * D, C - D),
        }


class Merged:
    """q_h = x S_h, k = x: W_query_h W_key_h^T trained as one matrix of full rank.

    With biases, the key's bias cancels in the softmax and the query's becomes one key-side vector
    per head, which is the bias of S: score_h(i, j) = scale * (x_i S_h + u_h) . x_j.
    """

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        return {"S": nn.Linear(config.d_in, config.n_heads * config.d_in, bias=config.qkv_bias)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        C, D = config.d_in, config.head_dim
        query, key = draw(config.n_heads * D, C), draw(config.n_kv_heads * D, C)
        product = merge_query_key(query, key, config.n_heads)
        return {"S": start_merged(config.merged_start, product, factor_spread(query, key, D))}

    def key_shape(self, config: AttentionConfig) -> tuple[int, int]:
        return 1, config.d_in

    def __call__(self, layers: Any, x: Float[mx.array, "B T C"]) -> tuple[Queries, Keys]:
        return split_heads(layers.S(x), layers.config.n_heads), x[:, None]


SCORES: dict[str, Score] = {
    "separate": Separate(),
    "merged": Merged(),
    "no_query": NoQuery(),
    "no_key": NoKey(),
    "shared": Shared(),
    "collaborative": Collaborative(),
    "shrunk": ShrunkKey(),
}


def head_blocks(n_heads: int, head_dim: int) -> Float[mx.array, "H width"]:
    """Mixing vectors that give each head its own block: collaborative starts as separate."""
    return mx.repeat(mx.eye(n_heads), head_dim, axis=1)


def _query_layer(config: AttentionConfig) -> nn.Linear:
    return nn.Linear(config.d_in, config.n_heads * config.head_dim, bias=config.qkv_bias)


def _key_layer(config: AttentionConfig) -> nn.Linear:
    return nn.Linear(config.d_in, config.n_kv_heads * config.head_dim, bias=config.qkv_bias)


Values = Float[mx.array, "B value_heads T D"]


@runtime_checkable
class Value(Protocol):
    """One way to make values."""

    def layers(self, config: AttentionConfig) -> dict[str, nn.Module]:
        """The trained parts by name."""
        ...

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        """The starting weights of those parts, by name."""
        ...

    def shape(self, config: AttentionConfig) -> tuple[int, int]:
        """How many value heads there are, and how wide each is."""
        ...

    def __call__(
        self, layers: Any, x: Float[mx.array, "B T C"], k: Float[mx.array, "B heads T K"]
    ) -> Values:
        """Values of x; `k` are its keys."""
        ...

    def after(self, layers: Any, y: Float[mx.array, "B H T C"]) -> Float[mx.array, "B H T D"]:
        """The same map applied to y_h = softmax_h x."""
        ...


class LinearValue:
    """v_h = x W_value_h."""

    def layers(self, config: AttentionConfig) -> dict[str, nn.Module]:
        width = config.n_kv_heads * config.value_dim
        return {"W_value": nn.Linear(config.d_in, width, bias=config.qkv_bias)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        return {"W_value": draw(config.n_kv_heads * config.value_dim, config.d_in)}

    def shape(self, config: AttentionConfig) -> tuple[int, int]:
        return config.n_kv_heads, config.value_dim

    def __call__(
        self, layers: Any, x: Float[mx.array, "B T C"], k: Float[mx.array, "B heads T K"]
    ) -> Values:
        return split_heads(layers.W_value(x), layers.config.n_kv_heads)

    def after(self, layers: Any, y: Float[mx.array, "B H T C"]) -> Float[mx.array, "B H T D"]:
        config, W_value = layers.config, layers.W_value
        weight = self.matrix(layers).reshape(config.n_kv_heads, config.value_dim, -1)
        weight = _per_query_head(weight, y)
        heads = y @ weight.swapaxes(1, 2)
        if "bias" not in W_value:
            return heads
        return heads + _per_query_head(W_value.bias.reshape(config.n_kv_heads, 1, -1), y)

    def matrix(self, layers: Any) -> Float[mx.array, "width C"]:
        """The whole matrix of W_value."""
        return layers.W_value.weight


class ShrunkValue(LinearValue):
    """v_h = x[kept_h] + x[rest_h] R_h: W_value less what out_proj can do as well."""

    def layers(self, config: AttentionConfig) -> dict[str, nn.Module]:
        bias = config.qkv_bias
        return {"W_value": ShrunkLinear(config.d_in, config.n_kv_heads, config.value_dim, bias)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        rows = config.n_kv_heads * config.value_dim
        return {"W_value": draw(rows, config.d_in - config.value_dim)}

    def matrix(self, layers: Any) -> Float[mx.array, "width C"]:
        return layers.W_value.whole()


class ValueFromKey(LinearValue):
    """v = concat(k) W_value: the keys of all heads hold all of x (Graef, arXiv:2503.05840).

    What it calls x is the joined keys; only they are remembered.
    """

    def layers(self, config: AttentionConfig) -> dict[str, nn.Module]:
        keys = config.n_kv_heads * config.head_dim
        width = config.n_kv_heads * config.value_dim
        return {"W_value": nn.Linear(keys, width, bias=config.qkv_bias)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        keys = config.n_kv_heads * config.head_dim
        return {"W_value": draw(config.n_kv_heads * config.value_dim, keys)}


class IdentityValue:
    """v_h = x[slice h]."""

    def layers(self, config: AttentionConfig) -> dict[str, nn.Module]:
        return {}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        return {}

    def shape(self, config: AttentionConfig) -> tuple[int, int]:
        return config.n_kv_heads, config.value_dim

    def __call__(
        self, layers: Any, x: Float[mx.array, "B T C"], k: Float[mx.array, "B heads T K"]
    ) -> Values:
        return split_heads(x, layers.config.n_kv_heads)

    def after(self, layers: Any, y: Float[mx.array, "B H T C"]) -> Float[mx.array, "B H T D"]:
        D, group = layers.config.value_dim, layers.config.n_heads // layers.config.n_kv_heads
        slices = [y[:, h, :, h // group * D : (h // group + 1) * D] for h in range(y.shape[1])]
        return mx.stack(slices, axis=1)


class KeyAsValue(IdentityValue):
    """v_h = k_h (Kayyam et al., arXiv:2606.04032)."""

    def __call__(
        self, layers: Any, x: Float[mx.array, "B T C"], k: Float[mx.array, "B heads T K"]
    ) -> Values:
        return k


class WholeValue(IdentityValue):
    """v = x, one value for all heads: the map itself is inside the merged output."""

    def shape(self, config: AttentionConfig) -> tuple[int, int]:
        return 1, config.d_in

    def __call__(
        self, layers: Any, x: Float[mx.array, "B T C"], k: Float[mx.array, "B heads T K"]
    ) -> Values:
        return x[:, None]

    def after(self, layers: Any, y: Float[mx.array, "B H T C"]) -> Float[mx.array, "B H T C"]:
        return y


VALUES: dict[str, Value] = {
    "linear": LinearValue(),
    "identity": IdentityValue(),
    "key": KeyAsValue(),
    "shrunk": ShrunkValue(),
    "from_key": ValueFromKey(),
}


def value_of(config: AttentionConfig) -> Value:
    """The value map of a configuration: with a merged output, x itself."""
    return WholeValue() if config.output == "merged" else VALUES[config.value]


def _per_query_head(
    parts: Float[mx.array, "kv_heads rows columns"], y: Float[mx.array, "B H T C"]
) -> Float[mx.array, "H rows columns"]:
    return mx.repeat(parts, y.shape[1] // parts.shape[0], axis=0)


@runtime_checkable
class Output(Protocol):
    """One way to bring the heads together."""

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        """The trained parts by name."""
        ...

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        """The starting weights of those parts, by name."""
        ...

    def __call__(
        self, layers: Any, heads: Float[mx.array, "B H T D"]
    ) -> Float[mx.array, "B T d_out"]:
        """The layer's output from its heads."""
        ...


class LinearOutput:
    """y = concat(heads) out_proj."""

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        width = config.n_heads * config.value_dim
        return {"out_proj": nn.Linear(width, config.d_out, bias=config.out_bias)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        return {"out_proj": draw(config.d_out, config.n_heads * config.value_dim, residual=True)}

    def __call__(
        self, layers: Any, heads: Float[mx.array, "B H T D"]
    ) -> Float[mx.array, "B T d_out"]:
        return layers.out_proj(join_heads(heads))


class NoOutput:
    """y = g concat(heads), with g = 1 unless the configuration asks for a trained gain.

    A random out_proj whose elements have spread s turns heads of spread 1 into an output of spread
    s sqrt(H D). Without it the branch would start that much louder, so g starts there.
    """

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        return {"residual_gain": mx.ones((1,))} if config.residual_gain else {}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        if not config.residual_gain:
            return {}
        width = config.n_heads * config.value_dim
        replaced = draw(config.d_out, width, residual=True)
        return {"residual_gain": (mx.std(replaced) * width**0.5).reshape(1)}

    def __call__(
        self, layers: Any, heads: Float[mx.array, "B H T D"]
    ) -> Float[mx.array, "B T d_out"]:
        y = join_heads(heads)
        return layers.residual_gain * y if "residual_gain" in layers else y


class MergedOutput:
    """y = sum_h (softmax_h x) VO_h: one C x d_out matrix per head in place of W_value, out_proj."""

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        width = config.n_heads * config.d_in
        return {"VO": nn.Linear(width, config.d_out, bias=config.out_bias)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        width, D = config.n_heads * config.value_dim, config.value_dim
        value, output = draw(width, config.d_in), draw(config.d_out, width, residual=True)
        product = merge_value_output(value, output, config.n_heads)
        return {"VO": start_merged(config.merged_start, product, factor_spread(value, output, D))}

    def __call__(
        self, layers: Any, heads: Float[mx.array, "B H T C"]
    ) -> Float[mx.array, "B T d_out"]:
        return layers.VO(join_heads(heads))


OUTPUTS: dict[str, Output] = {
    "linear": LinearOutput(),
    "none": NoOutput(),
    "merged": MergedOutput(),
}
