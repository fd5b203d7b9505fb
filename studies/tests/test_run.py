"""The study of two sizes is trained in the registered order, and resumes after a stop."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from mlx_attn.errors import RunError
from mlx_attn.text.characters import CharacterTokenizer
from mlx_attn.text.corpus import Corpus, Split
from studies import run
from studies.plan import SHORTER, Search, Study, Wanted, registered, wanted, world
from studies.trainings import Training

STUDY = registered()


def record(one: Wanted, loss: float = 1.0) -> Training:
    named = {"study": "two-sizes", "world": world(one.size), "arm": one.arm, "seed": one.seed}
    return Training(
        **named, rate=one.rate, loss=loss, key=one.key(STUDY), params=1, seconds=1.0, curve=()
    )


def test_whole_seeds_of_all_forms_come_first_at_m_then_at_s_then_the_searches():
    asked = [*wanted(STUDY, [])]
    first = [one.arm for one in asked[:6]]
    assert first == ["standard", SHORTER, "no-out-proj", "no-query", "one-head", "merged"]
    assert {one.seed for one in asked[:6]} == {400}
    places = [(one.size, one.seed >= 10_000) for one in asked]
    assert [*dict.fromkeys(places)] == [("M", False), ("S", False), ("S", True), ("M", True)]
    assert len(asked) == 6 * (4 + 12) + 5 * 3 * (4 + 1)
    assert len(run.missing(STUDY, [])) == len(asked)


def test_a_finished_search_asks_for_trainings_at_the_rates_that_it_chose():
    search = [one for one in wanted(STUDY, []) if one.seed >= 10_000]

    def loss(one: Wanted) -> float:
        best = 2.0 if one.arm == "no-query" else 1.0
        return 1.0 + abs(one.rate - best)

    done = [record(one, loss(one)) for one in search]
    more = [*wanted(STUDY, done)][-72:]
    assert {(one.size, one.arm, one.rate) for one in more} == {
        ("S", arm, 2.0 if arm == "no-query" else 1.0) for arm in STUDY.arms
    }
    others = [record(one) for one in wanted(STUDY, []) if one.seed < 10_000]
    again = run.missing(STUDY, [*done, *others])
    assert {(one.arm, one.rate) for one in again} == {("no-query", 2.0)}
    assert len(again) == 12


def test_a_registration_that_is_like_another_differs_only_in_what_it_says():
    rates = registered("two-sizes-rates")
    assert (rates.text, rates.shared, rates.sizes["S"]) == (
        STUDY.text,
        STUDY.shared,
        STUDY.sizes["S"],
    )
    search = [*wanted(rates, [])]
    assert len(search) == 4 * 5 * 4
    assert {one.seed for one in search} == {*STUDY.searches["S"].seeds}
    done = [msgspec.structs.replace(record(one), study=rates.name) for one in search]
    more = [*wanted(rates, done)][len(search) :]
    assert {one.seed for one in more} == {*STUDY.seeds["S"]}
    assert [one.arm for one in more[:6]] == [*STUDY.arms]


def test_all_forms_of_a_seed_differ_only_in_what_they_are_named_for():
    def model(arm: str) -> Mapping[str, Any]:
        return Wanted(size="M", arm=arm, seed=400).settings(STUDY, Path("text")).model

    standard = model("standard")
    assert model(SHORTER) == standard
    assert model("one-head") == {**standard, "n_heads": 1}
    assert {k for k, v in model("no-query").items() if v != standard[k]} == {"score"}
    training = Wanted(size="M", arm=SHORTER, seed=400).settings(STUDY, Path("text")).training
    assert (training.steps, training.batch_size, training.seed) == (1600, 64, 400)
    assert training.lr == pytest.approx(0.0238 * (300 / 2000) ** 0.25)


def test_finished_trainings_are_kept_and_not_asked_again(tmp_path):
    records = tmp_path / "records" / "two-sizes.jsonl"
    assert run.kept(records) == []
    first, second, third, *_ = wanted(STUDY, [])
    for one in (first, second):
        run.keep(records, record(one))
    assert run.kept(records) == [record(first), record(second)]
    assert run.missing(STUDY, run.kept(records))[0] == third


def test_the_matrix_s_learns_at_half_of_the_package_s_rate(tmp_path, monkeypatch):
    tokens = np.random.default_rng(0).integers(0, 7, 3000, np.uint16)
    split = Split(tokens=tokens, n_bytes=3000)
    corpus = Corpus("text", "digest", CharacterTokenizer("abcdefg"), split, split)
    monkeypatch.setattr(run, "corpus_of", lambda text, count: corpus)

    def small(share: float) -> Study:
        changes = {"merged_rate": share, "shared": {**STUDY.shared, "warmup": 0}}
        sizes = {"S": {**STUDY.sizes["S"], "steps": 4, "batch_size": 2}}
        return msgspec.structs.replace(STUDY, sizes=sizes, **changes)

    one = Wanted(size="S", arm="merged", seed=1)
    half, whole, again = (run.trained(small(s), one, Path(), "c") for s in (0.5, 1.0, 0.5))
    assert half.loss == again.loss != whole.loss
    assert (half.tokens, half.products, half.commit) == (1024, "float32", "c")
    assert [step for step, _ in half.curve] == [1, 2, 3, 4]


def test_one_command_trains_all_in_processes_and_then_nothing(tmp_path, monkeypatch):
    text, records = tmp_path / "python.txt", tmp_path / "two-sizes.jsonl"
    text.write_text("for x in range(10):\n    print(x)\n" * 40, encoding="utf-8")
    digest = hashlib.sha256(text.read_bytes()).hexdigest()
    of = {"sha256": digest, "validation": 100}
    search = Search(factors=(1.0,), seeds=(10_400,))
    tiny = {"n_layers": 1, "emb_dim": 8, "n_heads": 2, "batch_size": 1, "steps": 5}
    changes = {
        "text": msgspec.structs.replace(STUDY.text, **of),
        "sizes": {"S": tiny},
        "seeds": {"S": (400,)},
        "searches": {"S": search},
        "shared": {**STUDY.shared, "context_length": 16},
    }
    study = msgspec.structs.replace(STUDY, **changes)
    monkeypatch.setattr(run, "registered", lambda name: study)
    monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(tmp_path / "data"))
    arguments = [str(text), str(records), "--workers", "1", "--commit", "c"]
    first, second = (CliRunner().invoke(run.command, arguments) for _ in range(2))
    assert (first.exit_code, second.exit_code, second.output) == (0, 0, "")
    assert first.output.splitlines()[-1].startswith("11 of 11: source-S merged, seed 10400")
    assert {t.arm for t in run.kept(records)} == {*STUDY.forms, SHORTER}
    text.write_text("another text", encoding="utf-8")
    refused = CliRunner().invoke(run.command, arguments)
    assert isinstance(refused.exception, RunError)
    assert f"not {digest}" in str(refused.exception)
