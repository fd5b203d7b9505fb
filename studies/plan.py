"""The study of two sizes: does the cost of a part of attention change with the model's size?

`two-sizes.toml` and `two-sizes-rates.toml` are its registrations, each written before its
trainings. This module lists them in their order.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from mlx_attn.files import digest
from mlx_attn.records import package_table
from mlx_attn.training.config import Settings, resolve
from studies.text import SourceText
from studies.trainings import SIZES, Training, by_rates, rates_at

SHORTER = "shorter"
"""The arm of trainings of the book's form with fewer tokens."""


class Search(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A search for the rates of one size, with seeds of its own."""

    factors: tuple[float, ...]
    seeds: tuple[int, ...]
    then: tuple[int, ...] = ()  # seeds that are trained at the rates it chose; else the size's


class Study(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of a registration."""

    name: str
    forms: tuple[str, ...]  # the book's first
    shorter: float  # share of the tokens of the trainings that price a token
    points: int  # of a curve
    protocol: tuple[str, ...]
    analysis: tuple[str, ...]
    predictions: dict[str, dict[str, tuple[float, float]]]  # per cent of the tokens
    seeds: dict[str, tuple[int, ...]]
    searches: dict[str, Search]
    rates: dict[str, float]  # at 300 steps; times (300 / steps)^(1/4) at others
    merged_rate: float  # of a matrix S, as a share of the other matrices' rate
    sizes: dict[str, dict[str, int]]
    shared: dict[str, Any]
    text: SourceText

    @property
    def arms(self) -> tuple[str, ...]:
        """The forms, with the shorter training after the book's."""
        standard, *others = self.forms
        return standard, SHORTER, *others


def registered(name: str = SIZES[0]) -> Study:
    """Read a registration."""
    return msgspec.convert(_keys(name), Study)


def _keys(name: str) -> dict[str, Any]:
    """Return a registration's keys, completed by those of the one that it is `like`."""
    keys = package_table("studies", name)
    return {**_keys(keys.pop("like")), **keys} if "like" in keys else keys


def world(size: str) -> str:
    """Return the text and the size, as records name them."""
    return f"source-{size}"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A training that the study asks for."""

    size: str
    arm: str  # a form, or `SHORTER`
    seed: int
    rate: float = 1.0  # factor of all learning rates

    def settings(self, study: Study, file: Path) -> Settings:
        """Return all settings of the training on the text in a file."""
        size = study.sizes[self.size]
        # By the rule for all tokens, also in a training with fewer.
        by_rule = rates_at(size["steps"], study.rates)
        rates = {name: self.rate * rate for name, rate in by_rule.items()}
        share = study.shorter if self.arm == SHORTER else 1.0
        steps = round(share * size["steps"])
        one_head = {"n_heads": 1} if self.arm == "one-head" else {}
        form = study.forms[0] if self.arm in (SHORTER, "one-head") else self.arm
        of_all = {"preset": "nano", "variant": form, **study.shared, **size, **one_head, **rates}
        reports = {"eval_every": 0, "log_every": max(1, steps // study.points)}
        text = {"data": str(file), "tokenizer": "char"}
        return resolve(of_all, {"steps": steps, "seed": self.seed}, reports, text)

    def key(self, study: Study) -> str:
        """Return the digest of all that decides the training, but the code and the device."""
        rules = study.rates, study.merged_rate, study.shorter, study.shared, study.text.sha256
        facts = [self.arm, self.seed, self.rate, study.sizes[self.size], rules]
        return digest(json.dumps(facts, sort_keys=True).encode())


def wanted(study: Study, done: Iterable[Training]) -> Iterator[Wanted]:
    """Yield all trainings in the registered order, finished ones too.

    Those at the rates that a search chose come once all of its trainings are finished.
    """
    for size, seeds in study.seeds.items():
        for seed, arm in product(seeds, study.arms):
            yield Wanted(size=size, arm=arm, seed=seed)
    for size, search in study.searches.items():
        for seed, arm, rate in product(search.seeds, study.forms, search.factors):
            yield Wanted(size=size, arm=arm, seed=seed, rate=rate)
    for size, rates in own_rates(study, done).items():
        for seed, arm in product(study.searches[size].then or study.seeds[size], study.arms):
            yield Wanted(size=size, arm=arm, seed=seed, rate=rates[arm])


def own_rates(study: Study, done: Iterable[Training]) -> Mapping[str, Mapping[str, float]]:
    """Return the best factor of each form, of the sizes whose search has several seeds and ended.

    One training that diverged rules a factor out.
    """
    of_arms, found = by_rates(done, of_searches=True), dict[str, dict[str, float]]()
    for size, search in study.searches.items():
        of_forms = {arm: of_arms.get((study.name, world(size), arm), {}) for arm in study.forms}
        trained = sum(len(seeds) for of in of_forms.values() for seeds in of.values())
        asked = len(search.seeds) * len(search.factors) * len(study.forms)
        if len(search.seeds) > 1 and trained == asked:
            best = {
                arm: min(of, key=lambda rates: fmean(of[rates].values()))[0]
                for arm, of in of_forms.items()
            }
            found[size] = best | {SHORTER: best[study.forms[0]]}
    return found
