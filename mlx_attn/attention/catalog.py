"""The table of named variants: which choice each one makes for the maps of attention.

This is the only list. The command line's choices, the README's table, the documentation and the
parametrised tests all read it. The first row is the book's form.
"""

from dataclasses import replace

from mlx_attn.attention.config import REFERENCES, Variant, register

_FORMS = (
    Variant(
        name="standard",
        formula="q = x W_query, k = x W_key, v = x W_value, y = concat(heads) out_proj",
        summary="the book's multi-head attention",
    ),
    Variant(
        name="no-out-proj",
        output="none",
        formula="y = g concat(heads)",
        summary="the heads' outputs are concatenated and used as they are",
    ),
    Variant(
        name="merged",
        score="merged",
        formula="q_h = x S_h, k = x",
        summary="W_query_h W_key_h^T is trained as one full-rank matrix S_h",
    ),
    Variant(
        name="merged-no-out-proj",
        score="merged",
        output="none",
        formula="q_h = x S_h, k = x, y = g concat(heads)",
        summary="merged scores and no output projection",
    ),
    Variant(
        name="no-query",
        score="no_query",
        formula="q_h = x[slice h], k = x W_key",
        summary="the query is the head's own slice of x",
    ),
    Variant(
        name="no-key",
        score="no_key",
        formula="q = x W_query, k_h = x[slice h]",
        summary="the key is the head's own slice of x",
    ),
    Variant(
        name="shared-query-key",
        score="shared",
        formula="q = k = x W_query",
        summary="one matrix for query and key: the scores are symmetric",
    ),
    Variant(
        name="collaborative",
        score="collaborative",
        formula="q_h = (x W_query) * m_h, k = x W_key",
        summary="all heads share W_query and W_key; each head has its own mixing vector m_h",
    ),
    Variant(
        name="no-value",
        value="identity",
        formula="v_h = x[slice h]",
        summary="the value is the head's own slice of x",
    ),
    Variant(
        name="no-value-no-out-proj",
        value="identity",
        output="none",
        formula="v_h = x[slice h], y = g concat(heads)",
        summary="attention only moves slices of x to other tokens",
    ),
    Variant(
        name="sliced-heads",
        score="sliced",
        value="sliced",
        formula="q_h, k_h, v_h = x[slice h] W_query_h, x[slice h] W_key_h, x[slice h] W_value_h",
        summary="x is cut into heads before the projections, so a head reads only its own slice",
    ),
    Variant(
        name="key-only",
        score="no_query",
        value="identity",
        formula="q_h = x[slice h], k = x W_key, v_h = x[slice h]",
        summary="only W_key and out_proj are trained: queries and values are slices of x",
    ),
    Variant(
        name="key-as-value",
        value="key",
        formula="v = k = x W_key",
        summary="the key is used as the value: half the cache; `keyless` is another name for it",
        alias="keyless",
    ),
    Variant(
        name="merged-output",
        output="merged",
        formula="y = sum_h softmax_h x VO_h",
        summary="W_value_h out_proj_h is trained as one C x C matrix per head",
    ),
    Variant(
        name="merged-both",
        score="merged",
        output="merged",
        formula="q_h = x S_h, k = x, y = sum_h softmax_h x VO_h",
        summary="both products are trained as whole matrices",
    ),
)

_PAPERS = (
    Variant(
        name="mla",
        score="latent",
        value="latent",
        formula="c = x W_latent, k_h = c W_up_key_h, v_h = c W_up_value_h",
        summary="keys and values are computed from one narrow latent; only the latent is cached",
    ),
    Variant(
        name="nonlinear-query",
        score="nonlinear_query",
        formula="q = (x + norm(gelu(norm(x) W_down) W_up)) / 2, k = x W_key",
        summary="a narrow network of x, added to x, replaces W_query; same number of weights",
    ),
    Variant(
        name="value-residual",
        value="residual",
        formula="v = l_1 v of the first layer + l_2 x W_value",
        summary="the first layer's values are mixed into the values of every layer",
    ),
    Variant(
        name="value-embedding",
        value="embedding",
        formula="v = x W_value + g table[token]",
        summary="a vector per token of the vocabulary is added to the value",
    ),
    Variant(
        name="bank-of-values",
        value="bank",
        formula="v = table[token]",
        summary="the value is looked up by token, without its context",
    ),
    Variant(
        name="gated",
        output="gated",
        formula="y = (concat(heads) * sigmoid(x W_gate)) out_proj",
        summary="a gate for every output number of the heads",
    ),
    Variant(
        name="head-gated",
        output="head_gated",
        formula="y = concat(head_h * sigmoid(x W_gate)_h) out_proj",
        summary="one gate for each head",
    ),
    Variant(
        name="exclusive",
        output="exclusive",
        formula="y = concat(head_h - its part along v_h) out_proj",
        summary="heads lose the direction of the token's own value",
    ),
    Variant(
        name="hadamard",
        output="hadamard",
        formula="y = a * (concat(heads) Hadamard) + b",
        summary="a fixed mixing of heads replaces out_proj",
    ),
    Variant(
        name="orthogonal",
        output="orthogonal",
        formula="y = a * (concat(heads) Q) + b",
        summary="the control of hadamard: Q is random, orthogonal and fixed",
    ),
    Variant(
        name="differential",
        score="paired",
        output="differential",
        formula="y = concat(head_2h - sigmoid(x W_lambda)_h head_2h+1) out_proj",
        summary="the difference of two softmaxes over the same keys and values",
    ),
    Variant(
        name="sliding-window",
        window=32,
        formula="w_h(i, j) = 0 where i - j >= window",
        summary="a token sees only the last 32 tokens, and only these are cached; --window N",
        source="Longformer, arXiv:2004.05150",
    ),
    Variant(
        name="local-global",
        window=32,
        global_every=2,
        formula="w_h(i, j) = 0 where i - j >= window, in every other layer",
        summary="layers with a window of 32 alternate with layers that see all; --global-every K",
        source="Gemma 2, arXiv:2408.00118",
    ),
    Variant(
        name="cross-layer",
        kv_sharing=2,
        formula="k, v of layer 2 l + 1 = k, v of layer 2 l",
        summary="every second layer reads the keys and values of the layer before; --kv-sharing N",
        source="cross-layer attention, arXiv:2405.12981",
    ),
    Variant(
        name="forgetting",
        logits="forget",
        formula="s_h(i, j) = score_h(i, j) + sum_(j < l <= i) log sigmoid(x_l W_forget_h)",
        summary="a gate at each token sets how much of the past is forgotten",
    ),
    Variant(
        name="temperature",
        logits="temperature",
        formula="s_h = e^t_h score_h",
        summary="a trained sharpness for each head",
    ),
    Variant(
        name="talking-heads",
        logits="talking",
        mixing="talking",
        formula="s_h = sum_g P_hg score_g, w_h = sum_g R_hg softmax(s_g)",
        summary="heads' scores and weights are mixed across heads",
    ),
    Variant(
        name="sink",
        mixing="sink",
        formula="w_h = e^s_h / (e^b_h + sum e^s_h)",
        summary="a trained logit for each head that attends to nothing",
    ),
    Variant(
        name="off-by-one",
        mixing="off_by_one",
        formula="w_h = e^s_h / (1 + sum e^s_h)",
        summary="a head may attend to nothing",
    ),
    Variant(
        name="sigmoid",
        mixing="sigmoid",
        formula="w_h = sigmoid(s_h + b_h)",
        summary="every key is weighed by itself, without a sum to share",
    ),
    Variant(
        name="softpick",
        mixing="softpick",
        formula="w_h = relu(e^s_h - 1) / sum |e^s_h - 1|",
        summary="scores below 0 get no weight",
    ),
    Variant(
        name="linear",
        mixing="linear",
        position="learned",
        formula="w(i, j) = f(q_i) . f(k_j) / sum_(l <= i) f(q_i) . f(k_l), f = elu + 1",
        summary="positive features of query and key replace the softmax",
    ),
    Variant(
        name="deltanet",
        mixing="gated_delta",
        position="none",
        formula="S_t = alpha_t (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T, head_h = q_t S_t",
        summary="gated DeltaNet: no softmax, each token corrects a matrix that fades",
    ),
    Variant(
        name="deltanet-signed",
        mixing="signed_delta",
        position="none",
        formula="S_t = alpha_t (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T, 0 < beta_t < 2",
        summary="deltanet with eigenvalues from -1 to 1: a token may change the sign of a memory",
    ),
    Variant(
        name="gated-deltanet",
        mixing="gated_delta",
        output="normed_gated",
        position="none",
        short_conv="silu",
        formula="q, k, v = silu(conv(x W)), deltanet, y = (norm(heads) * silu(x W_gate)) out_proj",
        summary="the paper's whole layer: deltanet with convolutions of 4 tokens, norm and gate",
    ),
    Variant(
        name="path",
        mixing="path",
        position="none",
        formula="score(i, j) = q_i R_i ... R_(j+1) k_j, R_t = I - beta_t w_t w_t^T",
        summary="PaTH: each token between query and key reflects the query, in place of positions",
    ),
    Variant(
        name="selective",
        mixing="selective",
        formula="s_h(i, j) = score_h(i, j) - sum_(j < l < i) relu(score_1(l, j))",
        summary="each token withdraws from later ones what its first head attends to; no weights",
    ),
    Variant(
        name="shared-self-mask",
        score="shared",
        logits="self_mask",
        formula="q = k = x W_query, s_h(i, i) = -10^9",
        summary="Reformer's shared query-key: no token attends to itself if it can help it",
    ),
)

_REFERENCES = (
    Variant(
        name="scores-off",
        score="off",
        formula="score_h = 0",
        summary="reference arm: only positions decide which tokens a token attends to",
    ),
    Variant(
        name="attention-off",
        score="off",
        mixing="uniform",
        formula="w_h(i, j) = 1 / i",
        summary="reference arm: the mean of the past",
    ),
)

GROUPS = {"forms": _FORMS, "papers": _PAPERS, REFERENCES: _REFERENCES}
"""The rows by group, as `mlx-attn variants` shows them."""

for _group, _rows in GROUPS.items():
    for _row in _rows:
        register(replace(_row, group=_group))
