"""Write the parts of the documentation that come from the code: `python docs/make.py`.

The README's table of variants and the cards of docs/variants.md come from the tables of
variants, choices and conversions. Tests compare them.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

# Before MLX, because it loads the BLAS.
import mlx_attn  # noqa: F401

# isort: split
import mlx.core as mx
import numpy as np

from mlx_attn.attention.catalog import MAPS, VARIANTS, Variant
from mlx_attn.cli.answers import QUESTIONS
from mlx_attn.convert.conversions import CONVERSIONS
from mlx_attn.convert.measure import float64_logits
from mlx_attn.convert.model import convert
from mlx_attn.cost import ModelCost, model_cost
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import PRESETS, GPTConfig
from mlx_attn.model.gpt import GPT

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "variants.md"
TABLE = re.compile(r"(<!-- variants:.*?-->\n)(.*?)(<!-- /variants -->)", re.DOTALL)
QUESTIONED = ("standard", "no-out-proj", "merged", "no-query", "no-key", "no-value")
"""The variants of the README's table: those of its questions. All are in docs/variants.md."""
KEPT = {"kv": "key and value", "x": "only the input x", "k": "only the key, or the latent"}
SHORT, ENOUGH = 300, 20  # steps, and tokens for each parameter: the lengths of docs/answers.md
PRESET = PRESETS["nano"]
SIZES = {"vocab_size": 16, "context_length": 8, "emb_dim": 16, "n_heads": 4, "n_layers": 2}


def config_of(variant: Variant) -> GPTConfig:
    """Return the configuration of a variant at the sizes of the smallest preset."""
    return GPTConfig(**{"vocab_size": PRESET.vocab_size, **PRESET.model, **variant.settings})


def choices_of(config: GPTConfig) -> list[Any]:
    """Return the choices that differ from the standard form."""
    attention = config.attention()
    chosen = [choice for name in MAPS for choice in attention.choices(name)]
    return [choice for choice in chosen if choice.name != MAPS[choice.map]]


def cost_line(cost: ModelCost, standard: ModelCost) -> str:
    """Return the costs as ratios to the standard form's."""
    names = ("attention_parameters", "multiply_adds", "cache_floats")
    ratios = [getattr(cost, name) / getattr(standard, name) for name in names]
    words = ("parameters", "multiply-adds", "cache")
    return ", ".join(f"{word} {ratio:.2f}" for ratio, word in zip(ratios, words, strict=True))


def moved(model: GPT) -> GPT:
    """Return the model after moving all of its trained numbers, hooks included."""
    model.apply(
        lambda w: w + 0.2 * mx.random.normal(w.shape) if mx.issubdtype(w.dtype, mx.floating) else w
    )
    model.eval()
    return model


def conversions_of(variant: Variant) -> list[str]:
    """List the conversions of a small random model: exact, and with an error.

    The form `no-out-proj` is left out where it is another function: with several heads, always.
    """
    mx.random.seed(0)
    model = moved(GPT(GPTConfig(**{**SIZES, "latent_dim": 6, **variant.settings})))
    tokens, fitted = mx.random.randint(0, 16, (2, 8, 8))
    logits, exact, near = float64_logits(model, tokens), [], []
    for name in CONVERSIONS:
        try:
            converted = convert(model, name, tokens=fitted)
        except ConfigError:
            continue
        error = np.abs(logits - float64_logits(converted, tokens)).max()
        (exact if error < 1e-4 else near).append(f"`{name}`")
    near = [name for name in near if name != "`no-out-proj`"]
    with_error = f"; with an error to {', '.join(near)}" if near else ""
    return [f"- Converts exactly to {', '.join(exact) or 'nothing'}{with_error}"]


@cache
def measured() -> dict[str, list[str]]:
    """Return the measurements of each variant, by length of training, the shortest first."""
    rows = [row for one in QUESTIONS.values() for row in one["measured"]]
    found: dict[str, dict[int, list[str]]] = {}
    for row in sorted(rows, key=lambda row: row["steps"]):
        long = row["steps"] == SHORT or row["tokens_per_parameter"] >= ENOUGH
        if row["control"] == "standard" and long:
            said = f"{row['text']} {row['difference']:+.3f} ({row['word']})"
            found.setdefault(row["form"], {}).setdefault(row["steps"], []).append(said)
    return {
        variant: [f"{steps}: {', '.join(said)}" for steps, said in lengths.items()]
        for variant, lengths in found.items()
    }


def measured_lines(variant: str) -> list[str]:
    """Return the line with the measured differences of loss, if any."""
    said = measured().get(variant)
    return [f"- Loss minus `standard`, by steps: {'; '.join(said)}"] if said else []


def cache_line(config: GPTConfig, variant: Variant, chosen: list[Any]) -> list[str]:
    """Return the line about the cache if it differs from the standard form's."""
    if not config.attention().caches_tokens:
        return ["- Cache per token: none; each head keeps one matrix"]
    keeps = {choice.cache for choice in chosen if choice.map in ("score", "value")} - {"kv"}
    kept = KEPT[keeps.pop() if keeps else "kv"]
    if any(getattr(choice, "remembers", None) for choice in chosen):
        kept += ", and what it remembers"
    if variant.window:
        kept += f" of the last {variant.window} tokens"
    if every := variant.global_every:
        kept += f" in {every - 1} of {every} layers, of all tokens in the other"
    return [f"- Cache per token: {kept}"] if kept != KEPT["kv"] else []


def card(variant: Variant, standard: ModelCost) -> str:
    """Return the card of a variant."""
    config = config_of(variant)
    chosen = choices_of(config)
    named = chosen or [config.attention().choice(name) for name in ("score", "value", "output")]
    sources = list(dict.fromkeys(choice.source for choice in named if choice.source))
    lines = [
        *(f"### {variant.name}", "", f"{variant.summary[0].upper()}{variant.summary[1:]}."),
        *("", f"    {variant.formula}", ""),
        f"- From: {variant.source or '; '.join(sources)}",
        *measured_lines(variant.name),
        f"- Times `standard`: {cost_line(model_cost(config), standard)}",
        *cache_line(config, variant, chosen),
        *conversions_of(variant),
    ]
    return "\n".join(lines)


def page(head: str) -> str:
    """Join the first lines of the page, which are written by hand, with all cards."""
    standard = model_cost(config_of(VARIANTS["standard"]))
    parts = [head]
    for group in dict.fromkeys(variant.group for variant in VARIANTS.values()):
        parts.append(f"## {group[0].upper()}{group[1:]}\n")
        rows = [variant for variant in VARIANTS.values() if variant.group == group]
        parts += [card(row, standard) + "\n" for row in rows]
    return "\n".join(parts)


def headings() -> list[str]:
    """Return the headings of docs/variants.md: groups and variants, in the order of the table."""
    found: dict[str, None] = {}
    for name, variant in VARIANTS.items():
        found |= {f"## {variant.group[0].upper()}{variant.group[1:]}": None, f"### {name}": None}
    return [*found]


def variants_table() -> str:
    """Return the README's table of variants in Markdown."""
    shown = [VARIANTS[name] for name in QUESTIONED]
    rows = [f"| `{v.name}` | `{v.formula}` | {v.summary} |" for v in shown]
    return "\n".join(["| variant | formula | |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    head = PAGE.read_text(encoding="utf-8").partition("\n## ")[0]
    PAGE.write_text(page(head), encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    README.write_text(TABLE.sub(lambda m: m[1] + variants_table() + m[3], readme), "utf-8")
