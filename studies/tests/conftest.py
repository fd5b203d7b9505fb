"""A small study, and records of it whose losses follow a formula instead of trainings."""

import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from studies.book import Record
from studies.registration import REGISTRATION, Registration
from studies.schedule import arm_plans, wanted_trials
from studies.study import Study, Trial, study_from

ANSWERS = Path(__file__).parents[2] / "docs" / "answers"  # of the real studies
SETTINGS = {
    **{"data": "story.txt", "tokenizer": "char", "context_length": 16, "emb_dim": 16, "n_heads": 2},
    **{"n_layers": 1, "position": "rope", "start": "book", "optimizer": "adamw", "lr": 0.01},
    **{"min_lr": 0.0, "warmup": 2, "batch_size": 4, "steps": 10},
}


def contrast(arm: str, expects: list[str], **more: Any) -> dict[str, Any]:
    texts = {"statement": f"{arm} costs nothing", "source": "a source"}
    return {"arm": arm, "reference": "scores-off", "expects": expects, **texts, **more}


@pytest.fixture
def tables() -> dict[str, Any]:
    """The tables of a study of two worlds, two questions and six arms."""
    world = {"summary": "a story", "settings": SETTINGS, "margin": 0.03, "reason": "so"}
    arms = {
        "standard": {"settings": {}, "says": "all of it"},
        "scores-off": {"settings": {"variant": "scores-off"}, "says": "no scores"},
        "attention-off": {"settings": {"variant": "attention-off"}, "says": "the mean"},
        "no-query": {"settings": {"variant": "no-query"}, "says": "no W_query"},
        "no-key": {"settings": {"variant": "no-key"}, "says": "no W_key"},
        "shorter": {"settings": {}, "steps": 0.8, "rates_of": "standard", "says": "fewer steps"},
    }
    return {
        "protocol": {
            **{"factors": [1.0, 0.5, 2.0], "extensions": 2, "tuning_seeds": [10, 11, 12]},
            **{"verdict_seeds": [0, 1, 2, 3, 4, 5, 6, 7], "confidence": 0.95, "sensitivity": 4.0},
            **{"points": 5, "curve_share": 0.5, "first": ["standard", "scores-off"]},
            "analysis": ["as it is"],
        },
        "worlds": {
            "near": {**world, "text": "0" * 32, "same": {"attention-off": "scores-off"}},
            "far": {**world, "text": "1" * 32},
        },
        "arms": arms,
        "questions": {
            "query": {
                "title": "Can W_query go?",
                "contrasts": [contrast("no-query", ["equivalent", "better"])],
            },
            "key": {
                "title": "Can W_key go?",
                "contrasts": [contrast("no-key", ["worse"], reference="attention-off")],
            },
        },
    }


@pytest.fixture
def study(tables) -> Study:
    return study_from(tables)


def record_of(run: Trial, loss: float | None, **fields: Any) -> Record:
    return Record(
        key=run.key,
        world=run.world,
        arm=run.arm,
        seed=run.seed,
        scale=run.lr_scale,
        loss=loss,
        params=1,
        text=run.text,
        start="0",
        machine={"chip": "none"},
        seconds=1.0,
        **fields,
    ).sealed()


def register(study: Study, folder: Path, date: str = "2026-01-02") -> Registration:
    """Write a study's registration, as it was written before its trainings."""
    registration = Registration(date=date, digest=study.digest, study=study)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REGISTRATION).write_bytes(msgspec.json.encode(registration))
    return registration


Losses = Callable[[Trial], float | None]


@pytest.fixture(scope="session")
def trained() -> Callable[..., dict[str, Record]]:
    """Trains a study, or a part of it, by a formula, at most so many runs; returns the records.

    The loss is 1, 0.4 more without scores, an arm's effect, 0.1 for each squared octave between the
    factor and 1, and noise of that standard deviation.
    """

    def train(
        study: Study,
        effects: Mapping[str, float] | None = None,
        noise: float = 0.002,
        most: int = 10_000,
        loss: Losses | None = None,
        worlds: Collection[str] = (),
        questions: Collection[str] = (),
    ) -> dict[str, Record]:
        def by_formula(run: Trial) -> float:
            off = 0.4 * run.arm.endswith("-off") + 0.05 * (run.arm == "shorter")
            seed = zlib.crc32(repr((run.world, run.arm, run.seed, run.lr_scale)).encode())
            drawn = noise * np.random.default_rng(seed).standard_normal()
            octaves = float(np.log2(run.lr_scale))
            return float(1 + off + (effects or {}).get(run.arm, 0) + 0.1 * octaves**2 + drawn)

        records: dict[str, Record] = {}
        while len(records) < most:
            plans = arm_plans(study, records, worlds, questions)
            wanted = wanted_trials(plans)[: most - len(records)]
            if not wanted:
                return records
            found = [record_of(run, (loss or by_formula)(run)) for run in wanted]
            records |= {record.key: record for record in found}
        return records

    return train
