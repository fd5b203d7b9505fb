"""Odd texts, settings, paths, lines and samplers at random: an answer, or one line of refusal.

FUZZ_CASES is the number of cases of each kind; another number is another seed. A million:
`FUZZ_CASES=1000000 pytest -n0 tests/faults/test_odd_input.py`.
"""

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.cli.main import read_settings
from mlx_attn.errors import ConfigError, RunError, printable
from mlx_attn.files import user_path
from mlx_attn.model.config import GPTConfig, config_from, saved_settings
from mlx_attn.model.gpt import GPT
from mlx_attn.repl.commands import COMMANDS, handle_input
from mlx_attn.repl.session import SETTINGS, Screen, Session, Settings
from mlx_attn.runs import Run
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.generate import LoadedRun
from mlx_attn.sampling.samplers import Sampler
from mlx_attn.text.tokenizers import train_tokenizer
from mlx_attn.training.config import TrainConfig, resolve

COUNT = os.environ.get("FUZZ_CASES")

Draw = random.Random
ALPHABETS = (
    "ab",
    "the cat sat on the mat, ",
    "".join(map(chr, range(0x4E00, 0x4E00 + 300))),
    "\n\r\t\v\f \u00a0\u2028\u3000",
    "\u2581 a",
    "".join(map(chr, range(0x20))),
    "e\u0301\u200d\u200b\ufeff\u202e\U0001f469\U0001f3fd\U0001f680",
    "'\"\\/#%{}[]()<>$~*?!;:=,.-_+0123456789",
    "".join(map(chr, range(0x10FFF0, 0x110000))),
)
NUMBERS = (
    *(0, 1, -1, 2, 3, 8, 255, 256, 65_535, 65_536, 2**31, 2**32, 2**63, 2**64, 10**30),
    *(0.0, 0.5, 1.0, -0.5, 1e-300, 1e-45, 1e-6, 3e38, 1e308, float("inf"), float("nan")),
)


def odd_text(draw: Draw, longest: int = 40) -> str:
    letters = "".join(draw.choices(ALPHABETS, k=draw.randrange(1, 4)))
    return "".join(draw.choices(letters, k=draw.randrange(longest)))


def odd_value(draw: Draw) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: draw.choice(NUMBERS),
        lambda: draw.choice([True, False]),
        lambda: odd_text(draw, 12),
        lambda: draw.choice(["none", "all", "standard", "merged", "a+b", "1,2", "-", "muon"]),
    ]
    return draw.choice(kinds)()


def outcomes(cases: int, one_case: Callable[[Draw], Any]) -> Counter[str]:
    """How many cases were answered and how many refused; any other error names its case."""
    cases = int(COUNT or cases)
    found: Counter[str] = Counter()
    for case in range(cases):
        try:
            one_case(random.Random(f"{cases} {case}"))
            found["answered"] += 1
        except (ConfigError, RunError) as error:
            assert printable(str(error)).encode()  # noqa: PT017 - beside what was answered
            found["refused"] += 1
        except Exception as error:
            raise AssertionError(f"case {case} of {cases}") from error
    return found


def test_tokenizers_of_odd_texts_give_every_text_back():
    def one_case(draw: Draw) -> None:
        kind = draw.choice(["char", "bpe", "unigram", "bpe", "unigram"])
        text = odd_text(draw, 600) + draw.choice(["", " ", "the end\n"])
        tokenizer = train_tokenizer(kind, text, draw.choice([320, 400, 600]))
        for each in (text, *([] if kind == "char" else [odd_text(draw) for _ in range(5)])):
            tokens = tokenizer.encode(each)
            assert all(tokens < tokenizer.vocab_size)
            assert tokenizer.decode(tokens) == each

    assert outcomes(60, one_case)["answered"] > 40 * int(COUNT or 60) / 60


def test_odd_settings_are_settings_or_refused():
    training, model = (list(kind.__dataclass_fields__) for kind in (TrainConfig, GPTConfig))

    def one_case(draw: Draw) -> None:
        keys = draw.choices([*training, *model, "variant", "preset", "x"], k=draw.randrange(1, 4))
        settings = resolve({key: odd_value(draw) for key in keys})
        settings.model_config(draw.choice([1, 65, 65_536]))

    found = outcomes(500, one_case)
    assert min(found["answered"], found["refused"]) > 0


def test_odd_models_of_config_json_are_models_or_refused():
    keys = list(GPTConfig.__dataclass_fields__)

    def one_case(draw: Draw) -> None:
        settings = {key: odd_value(draw) for key in draw.choices(keys, k=draw.randrange(1, 3))}
        config = config_from(saved_settings(settings))
        assert config.head_dim * config.n_heads > 0

    outcomes(500, one_case)


def test_odd_toml_is_settings_or_refused(tmp_path):
    file = tmp_path / "settings.toml"
    lines = ("steps = 3", "[model]", "n_heads = 2", "lr = 1e-3", "[text]\ndata = 'x'", "[x]")

    def one_case(draw: Draw) -> None:
        parts = [draw.choice([odd_text(draw), *lines]) for _ in range(draw.randrange(1, 5))]
        file.write_bytes("\n".join(parts).encode("utf-8", "surrogatepass"))
        read_settings(file)

    outcomes(200, one_case)


def test_odd_paths_are_paths_or_refused():
    def one_case(draw: Draw) -> None:
        name = draw.choice(["~", "/", "", "..", "~x"]) + odd_text(draw, draw.choice([9, 400, 6000]))
        path = user_path(name)
        path.exists()
        assert isinstance(path, Path)

    outcomes(300, one_case)


@pytest.fixture(scope="module")
def voice() -> LoadedRun:
    tokenizer = train_tokenizer("bpe", "the cat sat on the mat. " * 20, 320)
    sizes: dict[str, Any] = {"context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
    model = GPT(GPTConfig(vocab_size=tokenizer.vocab_size, **sizes))
    return LoadedRun(Run(Path("runs", "one"), {}), model, tokenizer)


def test_no_line_ends_a_conversation(voice, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said: list[str] = []

    def load(name: str) -> LoadedRun:
        raise RunError(f"there is no run '{user_path(name)}'")

    session = Session(voice, Screen(said.append, said.append), load)
    names = [name for name in (*COMMANDS, *SETTINGS) if name != "quit"]

    def one_case(draw: Draw) -> None:
        argument = draw.choice([odd_text(draw, 12), str(odd_value(draw)), "", "x.json", "~nobody"])
        line = draw.choice([f"/{draw.choice(names)} {argument}", odd_text(draw), "/" + argument])
        handle_input(session, "/max 2" if draw.random() < 0.3 else line)
        if session.settings.max_tokens > 9:
            session.settings = Settings(max_tokens=2)
        assert not session.over or line.split()[0] in ("/q", "/exit", "/bye")

    outcomes(150, one_case)


def test_no_sampler_draws_an_impossible_token():
    keys = ("temp", "top_k", "top_p", "min_p", "repetition_penalty", "repetition_window", "seed")

    def one_case(draw: Draw) -> None:
        settings: dict[str, Any] = {}
        for key in draw.choices(keys, k=draw.randrange(1, 4)):
            kind = float if key in ("temp", "top_p", "min_p", "repetition_penalty") else int
            settings[key] = draw.choice([number for number in NUMBERS if type(number) is kind])
        sampler = Sampler(SamplerConfig(**settings))
        logits = np.random.default_rng(draw.randrange(2**32)).normal(0, 8, (1, 50))
        impossible = draw.sample(range(50), draw.randrange(40))
        logits[0, impossible] = -np.inf
        token = int(
            np.array(sampler(mx.array(logits, mx.float32), mx.array([[3, 4]], mx.uint32)))[0]
        )
        assert token in set(range(50)) - set(impossible)

    found = outcomes(200, one_case)
    assert min(found["answered"], found["refused"]) > 0
