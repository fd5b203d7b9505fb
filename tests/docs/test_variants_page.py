"""docs/variants.md is made from the tables of variants, choices, conversions and questions.

`python tests/docs/test_variants_page.py` writes it again.
"""

from pathlib import Path

# Before MLX, because it loads the BLAS.
import mlx_attn  # noqa: F401

# isort: split
import mlx.core as mx
import numpy as np

from mlx_attn.answers.study import the_study
from mlx_attn.attention.config import MAPS, VARIANTS, Choice, Variant
from mlx_attn.convert.measure import float64_logits
from mlx_attn.convert.model import convert
from mlx_attn.convert.table import CONVERSIONS
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import PRESETS, GPTConfig
from mlx_attn.model.gpt import GPT, ModelCost, model_cost

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "variants.md"
KEPT = {"kv": "key and value", "x": "the input x alone", "k": "the key, or the latent, alone"}
PRESET = PRESETS["nano"]
SIZES = {"vocab_size": 16, "context_length": 8, "emb_dim": 16, "n_heads": 4, "n_layers": 2}


def config_of(variant: Variant) -> GPTConfig:
    return GPTConfig(**{"vocab_size": PRESET.vocab_size, **PRESET.model, **variant.settings})


def choices_of(config: GPTConfig) -> list[Choice]:
    """The choices that are not those of the standard form."""
    attention = config.attention()
    chosen = [choice for name in MAPS for choice in attention.choices(name)]
    return [choice for choice in chosen if choice.name != MAPS[choice.map]]


def cost_line(cost: ModelCost, standard: ModelCost) -> str:
    names = ("attention_parameters", "multiply_adds", "cache_floats")
    ratios = [getattr(cost, name) / getattr(standard, name) for name in names]
    words = ("attention parameters", "multiply-adds", "cache")
    return ", ".join(f"{ratio:.2f} x {word}" for ratio, word in zip(ratios, words, strict=True))


def random_model(variant: Variant) -> GPT:
    """A small model of the variant, with every trained number away from where it starts."""
    mx.random.seed(0)
    model = GPT(GPTConfig(**{**SIZES, "latent_dim": 6, **variant.settings}))
    model.apply(
        lambda w: w + 0.2 * mx.random.normal(w.shape) if mx.issubdtype(w.dtype, mx.floating) else w
    )
    model.eval()
    return model


def conversions_of(variant: Variant) -> list[str]:
    """What happens to a small random model of the variant: exact, with an error, or refused."""
    model, (tokens, fitted) = random_model(variant), mx.random.randint(0, 16, (2, 4, 8))
    logits, exact, near, refusals = float64_logits(model, tokens), [], [], []
    for name in CONVERSIONS:
        try:
            converted = convert(model, name, tokens=fitted)
        except ConfigError as error:
            refusals.append(str(error))
            assert "\n" not in refusals[-1]
            continue
        error = np.abs(logits - float64_logits(converted, tokens)).max()
        (exact if error < 1e-4 else near).append(f"`{name}`")
    reason = "" if exact or near else f"; {max(refusals, key=refusals.count)}"
    lines = [f"- Converts exactly to: {', '.join(exact) or 'nothing' + reason}"]
    return lines + ([f"- Converts with an error to: {', '.join(near)}"] if near else [])


def questions_of(variant: str) -> str:
    study = the_study()
    asked = {
        name
        for name, contrast, _ in study.asked()
        if study.arms[contrast.arm].settings.get("variant") == variant and not contrast.repeats
    }
    names = [name for name in study.questions if name in asked]
    return f"{', '.join(names)}: see [answers](answers.md)" if names else "not measured"


def card(variant: Variant, standard: ModelCost) -> str:
    config = config_of(variant)
    chosen = choices_of(config)
    named = chosen or [config.attention().choices(name)[0] for name in ("score", "value", "output")]
    sources = list(dict.fromkeys(choice.source for choice in named if choice.source))
    keeps = {choice.cache for choice in chosen if choice.map in ("score", "value")} - {"kv"}
    kept = KEPT[keeps.pop() if keeps else "kv"]
    more = ", and what its hook reads" if any(choice.remembers for choice in chosen) else ""
    windowed = f" of the last {variant.window} tokens" if variant.window else ""
    if every := variant.global_every:
        windowed += f" in {every - 1} of {every} layers, of all in the other"
    lines = [
        f"### {variant.name}",
        "",
        f"{variant.summary[0].upper()}{variant.summary[1:]}.",
        "",
        f"    {variant.formula}",
        "",
        f"- From: {variant.source or '; '.join(sources)}",
        f"- Costs, at preset nano, beside `standard`: {cost_line(model_cost(config), standard)}",
        f"- Cached for each token: {kept}{more}{windowed}",
        *conversions_of(variant),
        f"- Asked about: {questions_of(variant.name)}",
    ]
    return "\n".join(lines)


HEAD = (
    "# Variants\n\nEvery named variant: `mlx-attn train --variant NAME`. Costs at other sizes: "
    "`mlx-attn variants`. Conversions are those of a\nsmall model with random weights; "
    "`convert` prints the error that it makes of yours,\nand [conversions](conversions.md) "
    "says when it is none. Your own: [your own variant](your-own-variant.md).\n"
    "This page is made by `python tests/docs/test_variants_page.py`.\n"
)


def page() -> str:
    standard = model_cost(config_of(VARIANTS["standard"]))
    parts = [HEAD]
    for group in dict.fromkeys(variant.group for variant in VARIANTS.values()):
        parts.append(f"## {group[0].upper()}{group[1:]}\n")
        rows = [variant for variant in VARIANTS.values() if variant.group == group]
        parts += [card(row, standard) + "\n" for row in rows]
    return "\n".join(parts)


def test_the_page_has_a_card_of_every_variant_group_by_group():
    """What a card says of each, tests/test_every_variant.py compares."""
    headings = []
    for name, variant in VARIANTS.items():
        group = f"## {variant.group[0].upper()}{variant.group[1:]}"
        headings += [group] if group not in headings else []
        headings.append(f"### {name}")
    written = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in written if line.startswith("##")] == headings
    assert written[: HEAD.count("\n")] == HEAD.splitlines()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
