"""docs/variants.md is made from the tables of variants, choices, conversions and findings.

`python tests/docs/test_variants_page.py` writes it again.
"""

import json
from pathlib import Path

from mlx_attn.attention.config import MAPS, VARIANTS, Choice, Variant
from mlx_attn.convert.table import CONVERSIONS
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import PRESETS, GPTConfig
from mlx_attn.model.gpt import ModelCost, model_cost

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "variants.md"
KEPT = {"kv": "key and value", "x": "the input x alone", "k": "the key, or the latent, alone"}
PRESET = PRESETS["nano"]


def config_of(variant: Variant) -> GPTConfig:
    return GPTConfig(**{"vocab_size": PRESET.vocab_size, **PRESET.model, **variant.maps})


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


def conversions_of(config: GPTConfig) -> str:
    names = []
    for name, conversion in CONVERSIONS.items():
        try:
            target = conversion.target(config)
        except ConfigError:
            continue
        if target != config:
            names.append(f"`{name}` ({conversion.exact})")
    return "; ".join(names) or "none: no identity covers it"


def findings_of(variant: str) -> str:
    files = sorted((ROOT / "docs" / "answers" / "findings").glob("*.json"))
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    claims = [
        finding["claim"]
        for finding in found
        for arms in list(finding["arms"].values())[:1]
        if variant in {arm["arm"] for arm in arms[1:]}
    ]
    if not claims:
        return "not measured yet"
    return f"{', '.join(claims)}: see [answers](answers.md) and the notice there"


def card(variant: Variant, standard: ModelCost) -> str:
    config = config_of(variant)
    chosen = choices_of(config)
    named = chosen or [config.attention().choices(name)[0] for name in ("score", "value", "output")]
    sources = list(dict.fromkeys(choice.source for choice in named if choice.source))
    keeps = {choice.cache for choice in chosen if choice.map in ("score", "value")} - {"kv"}
    kept = KEPT[keeps.pop() if keeps else "kv"]
    more = ", and what its hook reads" if any(choice.remembers for choice in chosen) else ""
    lines = [
        f"### {variant.name}",
        "",
        f"{variant.summary[0].upper()}{variant.summary[1:]}.",
        "",
        f"    {variant.formula}",
        "",
        f"- From: {'; '.join(sources) or 'algebra, or the control of another row'}",
        f"- Costs, at preset nano, beside `standard`: {cost_line(model_cost(config), standard)}",
        f"- Cached for each token: {kept}{more}",
        f"- Converts to: {conversions_of(config)}",
        f"- Findings: {findings_of(variant.name)}",
    ]
    return "\n".join(lines)


def page() -> str:
    standard = model_cost(config_of(VARIANTS["standard"]))
    head = (
        "# Variants\n\nEvery named variant: `mlx-attn train --variant NAME`. Costs at other sizes: "
        "`mlx-attn variants`. A conversion's error is\nmeasured and printed when it is made; "
        "[conversions](conversions.md) says when it is exact. Your own:\n"
        "[your own variant](your-own-variant.md). This page is made by\n"
        "`python tests/docs/test_variants_page.py`.\n"
    )
    parts = [head]
    for group in dict.fromkeys(variant.group for variant in VARIANTS.values()):
        parts.append(f"## {group[0].upper()}{group[1:]}\n")
        rows = [variant for variant in VARIANTS.values() if variant.group == group]
        parts += [card(row, standard) + "\n" for row in rows]
    return "\n".join(parts)


def test_the_page_is_what_the_tables_make_of_it():
    assert PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
