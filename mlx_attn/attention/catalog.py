"""The table of named variants: which choice each one makes for the maps of attention.

This is the only list. The command line's choices, the README's table, the documentation and the
parametrised tests all read it. The first row is the book's form.
"""

from typing import Any

from mlx_attn.attention.config import REFERENCES, Variant, register


def _row(formula: str, summary: str, **settings: Any) -> dict[str, Any]:
    return {"formula": formula, "summary": summary, **settings}


_FORMS = {
    "standard": _row(
        "q = x W_query, k = x W_key, v = x W_value, y = concat(heads) out_proj",
        "the book's multi-head attention",
    ),
    "no-out-proj": _row(
        "y = g concat(heads)",
        "the heads' outputs are concatenated and used as they are",
        output="none",
    ),
    "merged": _row(
        "q_h = x S_h, k = x",
        "W_query_h W_key_h^T is trained as one full-rank matrix S_h",
        score="merged",
    ),
    "merged-no-out-proj": _row(
        "q_h = x S_h, k = x, y = g concat(heads)",
        "merged scores and no output projection",
        score="merged",
        output="none",
    ),
    "no-query": _row(
        "q_h = x[slice h], k = x W_key", "the query is the head's own slice of x", score="no_query"
    ),
    "no-key": _row(
        "q = x W_query, k_h = x[slice h]", "the key is the head's own slice of x", score="no_key"
    ),
    "shared-query-key": _row(
        "q = k = x W_query",
        "one matrix for query and key: the scores are symmetric",
        score="shared",
    ),
    "collaborative": _row(
        "q_h = (x W_query) * m_h, k = x W_key",
        "all heads share W_query and W_key; each head has its own mixing vector m_h",
        score="collaborative",
    ),
    "no-value": _row(
        "v_h = x[slice h]", "the value is the head's own slice of x", value="identity"
    ),
    "no-value-no-out-proj": _row(
        "v_h = x[slice h], y = g concat(heads)",
        "attention only moves slices of x to other tokens",
        value="identity",
        output="none",
    ),
    "sliced-heads": _row(
        "q_h, k_h, v_h = x[slice h] W_query_h, x[slice h] W_key_h, x[slice h] W_value_h",
        "x is cut into heads before the projections, so a head reads only its own slice",
        score="sliced",
        value="sliced",
    ),
    "key-only": _row(
        "q_h = x[slice h], k = x W_key, v_h = x[slice h]",
        "only W_key and out_proj are trained: queries and values are slices of x",
        score="no_query",
        value="identity",
    ),
    "key-as-value": _row(
        "v = k = x W_key",
        "the key is used as the value: half the cache; `keyless` is another name for it",
        value="key",
        alias="keyless",
    ),
    "merged-output": _row(
        "y = sum_h softmax_h x VO_h",
        "W_value_h out_proj_h is trained as one C x C matrix per head",
        output="merged",
    ),
    "merged-both": _row(
        "q_h = x S_h, k = x, y = sum_h softmax_h x VO_h",
        "both products are trained as whole matrices",
        score="merged",
        output="merged",
    ),
}

_PAPERS = {
    "mla": _row(
        "c = x W_latent, k_h = c W_up_key_h, v_h = c W_up_value_h",
        "keys and values are computed from one narrow latent; only the latent is cached",
        score="latent",
        value="latent",
    ),
    "nonlinear-query": _row(
        "q = (x + norm(gelu(norm(x) W_down) W_up)) / 2, k = x W_key",
        "a narrow network of x, added to x, replaces W_query; same number of weights",
        score="nonlinear_query",
    ),
    "value-residual": _row(
        "v = l_1 v of the first layer + l_2 x W_value",
        "the first layer's values are mixed into the values of every layer",
        value="residual",
    ),
    "gated": _row(
        "y = (concat(heads) * sigmoid(x W_gate)) out_proj",
        "a gate for every output number of the heads",
        output="gated",
    ),
    "head-gated": _row(
        "y = concat(head_h * sigmoid(x W_gate)_h) out_proj",
        "one gate for each head",
        output="head_gated",
    ),
    "exclusive": _row(
        "y = concat(head_h - its part along v_h) out_proj",
        "heads lose the direction of the token's own value",
        output="exclusive",
    ),
    "differential": _row(
        "y = concat(head_2h - sigmoid(x W_lambda)_h head_2h+1) out_proj",
        "the difference of two softmaxes over the same keys and values",
        score="paired",
        output="differential",
    ),
    "sliding-window": _row(
        "w_h(i, j) = 0 where i - j >= window",
        "a token sees only the last 32 tokens, and only these are cached; --window N",
        window=32,
        source="Longformer, arXiv:2004.05150",
    ),
    "local-global": _row(
        "w_h(i, j) = 0 where i - j >= window, in every other layer",
        "layers with a window of 32 alternate with layers that see all; --global-every K",
        window=32,
        global_every=2,
        source="Gemma 2, arXiv:2408.00118",
    ),
    "cross-layer": _row(
        "k, v of layer 2 l + 1 = k, v of layer 2 l",
        "every second layer reads the keys and values of the layer before; --kv-sharing N",
        kv_sharing=2,
        source="cross-layer attention, arXiv:2405.12981",
    ),
    "forgetting": _row(
        "s_h(i, j) = score_h(i, j) + sum_(j < l <= i) log sigmoid(x_l W_forget_h)",
        "a gate at each token sets how much of the past is forgotten",
        logits="forget",
    ),
    "temperature": _row(
        "s_h = e^t_h score_h", "a trained sharpness for each head", logits="temperature"
    ),
    "talking-heads": _row(
        "s_h = sum_g P_hg score_g, w_h = sum_g R_hg softmax(s_g)",
        "heads' scores and weights are mixed across heads",
        logits="talking",
        mixing="talking",
    ),
    "sink": _row(
        "w_h = e^s_h / (e^b_h + sum e^s_h)",
        "a trained logit for each head that attends to nothing",
        mixing="sink",
    ),
    "off-by-one": _row(
        "w_h = e^s_h / (1 + sum e^s_h)", "a head may attend to nothing", mixing="off_by_one"
    ),
    "sigmoid": _row(
        "w_h = sigmoid(s_h + b_h)",
        "every key is weighed by itself, without a sum to share",
        mixing="sigmoid",
    ),
    "softpick": _row(
        "w_h = relu(e^s_h - 1) / sum |e^s_h - 1|", "scores below 0 get no weight", mixing="softpick"
    ),
    "linear": _row(
        "w(i, j) = f(q_i) . f(k_j) / sum_(l <= i) f(q_i) . f(k_l), f = elu + 1",
        "positive features of query and key replace the softmax",
        mixing="linear",
        position="learned",
    ),
    "deltanet": _row(
        "S_t = alpha_t (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T, head_h = q_t S_t",
        "gated DeltaNet: no softmax, each token corrects a matrix that fades",
        mixing="gated_delta",
        position="none",
    ),
    "deltanet-signed": _row(
        "S_t = alpha_t (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T, 0 < beta_t < 2",
        "deltanet with eigenvalues from -1 to 1: a token may change the sign of a memory",
        mixing="signed_delta",
        position="none",
    ),
    "gated-deltanet": _row(
        "q, k, v = silu(conv(x W)), deltanet, y = (norm(heads) * silu(x W_gate)) out_proj",
        "the paper's whole layer: deltanet with convolutions of 4 tokens, norm and gate",
        mixing="gated_delta",
        output="normed_gated",
        position="none",
        short_conv="silu",
    ),
    "path": _row(
        "score(i, j) = q_i R_i ... R_(j+1) k_j, R_t = I - beta_t w_t w_t^T",
        "PaTH: each token between query and key reflects the query, in place of positions",
        mixing="path",
        position="none",
    ),
    "selective": _row(
        "s_h(i, j) = score_h(i, j) - sum_(j < l < i) relu(score_1(l, j))",
        "each token withdraws from later ones what its first head attends to; no weights",
        mixing="selective",
    ),
    "shared-self-mask": _row(
        "q = k = x W_query, s_h(i, i) = -10^9",
        "Reformer's shared query-key: no token attends to itself if it can help it",
        score="shared",
        logits="self_mask",
    ),
}

_REFERENCES = {
    "scores-off": _row(
        "score_h = 0",
        "reference arm: only positions decide which tokens a token attends to",
        score="off",
    ),
    "attention-off": _row(
        "w_h(i, j) = 1 / i", "reference arm: the mean of the past", score="off", mixing="uniform"
    ),
}

for _group, _rows in {"forms": _FORMS, "papers": _PAPERS, REFERENCES: _REFERENCES}.items():
    for _name, _settings in _rows.items():
        register(Variant(name=_name, group=_group, **_settings))
