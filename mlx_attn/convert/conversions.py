"""The conversions: their target forms, the identities behind them, and their refusals."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mlx_attn.attention.config import AttentionConfig
from mlx_attn.errors import ConfigError, find_row

_Keys = Mapping[str, Any]
_SCORE_KEYS = ("score", "head_dim", "n_kv_heads")  # of a configuration, beside a latent's width


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """One way to rewrite a trained model."""

    name: str  # on the command line; the name of a variant if it leads to one
    identity: str  # why both forms compute the same, in the field's letters
    exact: str  # when they do
    # Returns the configuration keys that differ in the target, from a configuration and a rank (0:
    # not given). All others stay, including the scale of the scores.
    keys: Callable[[AttentionConfig, int], _Keys]
    # Each says why a model cannot be converted, and the way out; "" if it can.
    refusals: tuple[Callable[[AttentionConfig], str], ...] = ()
    ranked: str = ""  # the meaning of --rank; empty if --rank is refused

    def changes(self, config: AttentionConfig, rank: int = 0) -> _Keys:
        """Return the keys that the converted layer changes; none if it has that form already.

        Raises:
            ConfigError: It cannot be converted, with the reason.
        """
        if rank and not self.ranked:
            names = ", ".join(name for name, row in CONVERSIONS.items() if row.ranked)
            raise ConfigError(f"--to {self.name} has no rank: leave --rank out, or use {names}")
        if not 0 <= rank <= config.d_in:
            raise ConfigError(f"rank {rank} must be from 1 to emb_dim={config.d_in}")
        reason = next(filter(None, (refusal(config) for refusal in self.refusals)), "")
        keys = {} if reason else self.keys(config, rank)
        changed = {key: value for key, value in keys.items() if getattr(config, key) != value}
        # This applies to every rewriting of scores, before the sizes of the target are checked.
        if changed.keys() & {*_SCORE_KEYS, "latent_dim"}:
            reason = _of_scores(config)
        if reason:
            raise ConfigError(f"--to {self.name}: {reason}")
        return changed


def changes_scores(config: AttentionConfig, target: AttentionConfig) -> bool:
    """Return True if a conversion rewrites the score map."""
    return _differ(config, target, *_SCORE_KEYS)


def changes_output(config: AttentionConfig, target: AttentionConfig) -> bool:
    """Return True if a conversion rewrites the value and output maps."""
    return _differ(config, target, "value", "output", "value_dim", "n_kv_heads")


def find_conversion(name: str) -> Conversion:
    """Return the named conversion; hyphens and underscores are the same."""
    return find_row(CONVERSIONS, name, "conversion")


def key_bias_cancels(config: AttentionConfig) -> bool:
    """Return True if a constant added to all scores of a query changes no weight."""
    # The key's bias adds one number to all scores of a query.
    hooks = (*config.choices("logits"), *config.choices("mixing"))
    return all(hook.shift_invariant for hook in hooks)


def loosens_sums(config: AttentionConfig) -> str:
    """Return the setting that lets a query's weights add up to another number than 1, or ""."""
    if config.drop_rate > 0:
        return f"drop_rate={config.drop_rate}"
    return "" if config.choice("mixing").sums_to_one else f"mixing={config.mixing}"


def _differ(config: AttentionConfig, target: AttentionConfig, of_map: str, *sizes: str) -> bool:
    # A latent is part of both maps, so another width changes both.
    latent = ("latent_dim",) if getattr(target, of_map) == "latent" else ()
    keys = (of_map, *sizes, *latent)
    return any(getattr(config, key) != getattr(target, key) for key in keys)


def _separate(config: AttentionConfig, rank: int) -> _Keys:
    # One wide key serves all heads of the collaborative form, so each S_h may have its rank.
    width = config.n_heads * config.head_dim if config.score == "collaborative" else config.head_dim
    # The rank of S_h is at most C, and a wider head would only hold zeros.
    head_dim = rank or min(width, config.d_in)
    return {"score": "separate", "head_dim": head_dim, **_without_keys(config)}


def _standard(config: AttentionConfig, rank: int) -> _Keys:
    scores = {} if config.score == "separate" else _separate(config, rank)
    return {**scores, "value": "linear", "output": "linear"}


def _merged_output(config: AttentionConfig, rank: int) -> _Keys:
    return {"value": "linear", "output": "merged", "n_kv_heads": config.n_heads}


def _no_out_proj(config: AttentionConfig, rank: int) -> _Keys:
    """Let each head write its own slice of y; move the bias of out_proj into W_value."""
    return {
        "value": "linear",
        "output": "none",
        "value_dim": config.d_in // config.n_heads,
        "qkv_bias": config.qkv_bias or (config.out_bias and config.output != "none"),
    }


def _slice_of_x(score: str) -> Callable[[AttentionConfig, int], _Keys]:
    """Let the only head read all of x as its query or key."""
    return lambda config, rank: {
        "score": score,
        "head_dim": config.d_in,
        **_without_keys(config),
    }


def _mla(config: AttentionConfig, rank: int) -> _Keys:
    # Without --rank: the latent as it is, or one that can hold everything.
    width = config.latent_dim if config.score == "latent" else config.d_in
    maps = {"score": "latent", "value": "latent", "output": "linear"}
    sizes = {"n_kv_heads": config.n_heads, "latent_dim": rank or width}
    # First the separate form at its own rank, then one latent for its keys and values.
    return {**_separate(config, 0), **maps, **sizes}


def _without_keys(config: AttentionConfig) -> _Keys:
    """Write out values that are computed from keys, because the keys are about to change."""
    return {"value": "linear"} if config.choice("value").reads_keys else {}


# Refusals: the reason and the way out, or an empty text, as for a choice.


def _of_scores(config: AttentionConfig) -> str:
    if config.rotates:
        return (
            f"position={config.position} turns queries and keys, so that every distance has "
            "another S_h: train with position=learned, alibi or none"
        )
    if config.qk_norm:
        return "qk_norm divides queries and keys by their lengths: train without it"
    if config.qkv_bias and config.choice("score").cache != "x" and not key_bias_cancels(config):
        return (
            f"the key's bias cancels only in a softmax, and logits={config.logits}, "
            f"mixing={config.mixing} let it change the weights: train without qkv_bias"
        )
    if config.choice("mixing").reads_keys:
        return (
            f"mixing={config.mixing} reads queries and keys themselves, and a conversion of scores "
            "keeps only their products: convert values and outputs, --to merged-output"
        )
    return ""


def _of_value_bias(config: AttentionConfig) -> str:
    if not config.qkv_bias or config.output == "merged":  # no bias of W_value has to move
        return ""
    if changes := loosens_sums(config):
        return (
            "a bias of W_value becomes a constant only if attention weights add up to 1, and with "
            f"{changes} they need not: train without it, or without qkv_bias"
        )
    if not config.out_bias:
        return "bias=False leaves no place for the bias of W_value: train with bias or no qkv_bias"
    return ""


def _of_latent(config: AttentionConfig) -> str:
    if config.score == "latent":
        return "scores and values share one latent: convert both, --to standard or merged-both"
    return ""


def _of_grouped_keys(config: AttentionConfig) -> str:
    if config.n_kv_heads == config.n_heads or config.choice("score").cache == "x":
        return ""
    return (
        f"{config.n_heads} heads share {config.n_kv_heads} keys, and merged values leave none to "
        "share: use --to merged-both, which repeats them"
    )


def _of_several_heads(config: AttentionConfig) -> str:
    if config.n_heads == 1:
        return ""
    return (
        f"{config.n_heads} heads would each read their own slice of x, which pins S_h to these "
        "coordinates: one head converts exactly; for several use --to merged"
    )


def _of_slices_of_y(config: AttentionConfig) -> str:
    if config.d_in % config.n_heads > 0:
        return f"emb_dim={config.d_in} does not divide into {config.n_heads} slices of y"
    if config.n_kv_heads < config.n_heads:
        return (
            f"{config.n_heads} heads share {config.n_kv_heads} values, and each must write its own "
            "slice"
        )
    changes = loosens_sums(config)
    if changes and (config.qkv_bias or config.out_bias):
        return (
            f"biases move into W_value, and the attention weights of {changes} need not add up to "
            "1: train without it, or without biases"
        )
    return ""


_ROWS = (
    Conversion(
        name="standard",
        identity="S_h = W_query_h W_key_h^T and VO_h = W_value_h out_proj_h, written out",
        exact="unless a merged matrix has a rank above head_dim",
        keys=_standard,
    ),
    Conversion(
        name="merged",
        identity="S_h = W_query_h W_key_h^T, u_h = W_key_h b_query_h; b_key cancels",
        exact="always",
        keys=lambda config, rank: {"score": "merged", **_without_keys(config)},
    ),
    Conversion(
        name="separate",
        identity="(S_h; u_h) = U sqrt(s) . sqrt(s) V, cut to the largest singular values",
        exact="if the rank of S_h is no more than --rank",
        keys=_separate,
        ranked="head_dim of query and key",
    ),
    Conversion(
        name="merged-output",
        identity="VO_h = W_value_h out_proj_h, and b_value a constant",
        exact="always",
        keys=_merged_output,
        refusals=(_of_grouped_keys, _of_latent, _of_value_bias),
    ),
    Conversion(
        name="merged-both",
        identity="S_h = W_query_h W_key_h^T, VO_h = W_value_h out_proj_h",
        exact="always",
        keys=lambda config, rank: {"score": "merged", **_merged_output(config, rank)},
        refusals=(_of_value_bias,),
    ),
    Conversion(
        name="separate-output",
        identity="VO_h = U sqrt(s) . sqrt(s) V, cut to the largest singular values",
        exact="if the rank of VO_h is no more than --rank",
        keys=lambda config, rank: {
            "value": "linear",
            "output": "linear",
            "value_dim": rank or config.value_dim,
        },
        refusals=(_of_latent, _of_value_bias),
        ranked="value_dim",
    ),
    Conversion(
        name="no-out-proj",
        identity="y = softmax x (W_value out_proj) for one head; least squares for several",
        exact="for one head",
        keys=_no_out_proj,
        refusals=(_of_slices_of_y, _of_latent),
    ),
    Conversion(
        name="no-query",
        identity="q = x, k = x S^T",
        exact="for one head without a query bias; others are refused",
        keys=_slice_of_x("no_query"),
        refusals=(_of_several_heads,),
    ),
    Conversion(
        name="no-key",
        identity="q = x S + u, k = x",
        exact="for one head; others are refused",
        keys=_slice_of_x("no_key"),
        refusals=(_of_several_heads,),
    ),
    Conversion(
        name="mla",
        identity="(W_key, W_value) = W_latent (W_up_key, W_up_value), cut to --rank",
        exact="if the rank of W_key and W_value together is no more than --rank",
        keys=_mla,
        refusals=(_of_value_bias,),
        ranked="latent_dim, all that is cached",
    ),
)

CONVERSIONS: dict[str, Conversion] = {row.name: row for row in _ROWS}
