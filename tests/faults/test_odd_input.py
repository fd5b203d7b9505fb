"""Odd texts, settings, paths, command lines and samplers at random: an answer or one refusal.

How many cases each kind gets is said in conftest.py.
"""

import io
import random
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.cli.main import COMMANDS as PROGRAMS
from mlx_attn.cli.main import group, read_settings
from mlx_attn.comparison.plan import ComparisonConfig, arms_from, make_trial, reference_arm
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import user_path
from mlx_attn.interop.torch_archive import read_checkpoint
from mlx_attn.model.config import GPTConfig, config_from, saved_settings
from mlx_attn.model.gpt import GPT
from mlx_attn.repl.commands import COMMANDS, handle_input
from mlx_attn.repl.session import SETTINGS, Screen, Session, Settings
from mlx_attn.run_directory import Run
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.generate import LoadedRun
from mlx_attn.sampling.samplers import Sampler
from mlx_attn.text.tokenizers import train_tokenizer
from mlx_attn.training.config import TrainConfig, resolve

Fuzz = Callable[[Callable[[random.Random], Any]], Counter[str]]

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
    "\ud800\udc80\udcff",
)
TEXTS = ALPHABETS[:-1]
"""Those that UTF-8 can express."""
NUMBERS = (
    *(0, 1, -1, 2, 3, 8, 255, 256, 65_535, 65_536, 2**31, 2**32, 2**63, 2**64, 10**30),
    *(0.0, 0.5, 1.0, -0.5, 1e-300, 1e-45, 1e-6, 3e38, 1e308, float("inf"), float("nan")),
)


def odd_text(draw: Draw, longest: int = 40, alphabets: Sequence[str] = ALPHABETS) -> str:
    letters = "".join(draw.choices(alphabets, k=draw.randrange(1, 4)))
    return "".join(draw.choices(letters, k=draw.randrange(longest)))


def odd_value(draw: Draw) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: draw.choice(NUMBERS),
        lambda: draw.choice([True, False]),
        lambda: odd_text(draw, 12),
        lambda: draw.choice(["none", "all", "standard", "merged", "a+b", "1,2", "-", "muon"]),
    ]
    return draw.choice(kinds)()


def likely_value(draw: Draw, default: Any) -> Any:
    """Of the type that a setting has, and mostly of a size that it may have."""
    values: dict[type, Sequence[Any]] = {
        bool: (True, False),
        int: (0, 1, 2, 3, 4, 8, 64),
        float: (0.0, 1e-3, 0.1, 0.5, 1.0, 2.0),
        str: ("none", "linear", "merged", "no_query", "rope", "alibi", "muon", "cosine", "gelu"),
    }
    likely = [default, draw.choice(values[type(default)])]
    return odd_value(draw) if draw.random() < 0.2 else draw.choice(likely)


FIELDS: dict[str, Any] = {
    field.name: field.default for kind in (TrainConfig, GPTConfig) for field in fields(kind)
}


def test_tokenizers_of_odd_texts_give_every_text_back(fuzz: Fuzz):
    def one_case(draw: Draw) -> None:
        kind = draw.choice(["char", "bpe", "unigram", "bpe", "unigram"])
        text = odd_text(draw, 600, TEXTS) + draw.choice(["", " ", "the end\n"])
        tokenizer = train_tokenizer(kind, text, draw.choice([320, 400, 600]))
        for each in (
            text,
            *([] if kind == "char" else [odd_text(draw, 40, TEXTS) for _ in range(5)]),
        ):
            tokens = tokenizer.encode(each)
            assert all(tokens < tokenizer.vocab_size)
            assert tokenizer.decode(tokens) == each

    found = fuzz(one_case)
    assert found["answered"] > found["refused"]


def test_odd_settings_are_settings_or_refused(fuzz: Fuzz):
    defaults = {**FIELDS, "variant": "standard", "preset": "tiny", "x": 0}

    def one_case(draw: Draw) -> None:
        keys = draw.choices([*defaults], k=draw.randrange(1, 4))
        settings = resolve({key: likely_value(draw, defaults[key]) for key in keys})
        settings.model_config(draw.choice([1, 65, 65_536]))

    found = fuzz(one_case)
    assert min(found["answered"], found["refused"]) > 0


def test_odd_models_of_config_json_are_models_or_refused(fuzz: Fuzz):
    defaults = {field.name: field.default for field in fields(GPTConfig)}

    def one_case(draw: Draw) -> None:
        keys = draw.choices([*defaults], k=draw.randrange(1, 4))
        config = config_from(saved_settings({k: likely_value(draw, defaults[k]) for k in keys}))
        assert config.head_dim * config.n_heads > 0

    found = fuzz(one_case)
    assert min(found["answered"], found["refused"]) > 0


def test_odd_toml_is_settings_or_refused(fuzz: Fuzz, tmp_path):
    file = tmp_path / "settings.toml"
    lines = ("steps = 3", "[model]", "n_heads = 2", "lr = 1e-3", "[text]\ndata = 'x'", "[x]")

    def one_case(draw: Draw) -> None:
        parts = [draw.choice([odd_text(draw), *lines]) for _ in range(draw.randrange(1, 5))]
        file.write_bytes("\n".join(parts).encode("utf-8", "surrogatepass"))
        read_settings(file)

    fuzz(one_case)


def test_odd_paths_are_paths_or_refused(fuzz: Fuzz):
    def one_case(draw: Draw) -> None:
        name = draw.choice(["~", "/", "", "..", "~x"]) + odd_text(draw, draw.choice([9, 400, 6000]))
        path = user_path(name)
        path.exists()
        assert isinstance(path, Path)

    fuzz(one_case)


def test_odd_arms_are_arms_or_refused(fuzz: Fuzz):
    defaults = {**FIELDS, "variant": "merged", "x": 0}
    options = ("seeds", "minutes", "delta", "confidence", "tuning_seeds")

    def arm(draw: Draw) -> str:
        key = draw.choice([*defaults])
        value = likely_value(draw, defaults[key])
        settings = f"{draw.choice(['merged', 'no-value', 'x'])}, {key}={value}"
        odd = odd_text(draw) if draw.random() < 0.2 else "standard"
        return draw.choice([odd, "no-query", settings, f"one: {settings}"])

    def one_case(draw: Draw) -> None:
        arms = arms_from([arm(draw) for _ in range(draw.choice([1, 2, 2, 3]))])
        odd: dict[str, Any] = {draw.choice(options): draw.choice([2, 0.9, draw.choice(NUMBERS)])}
        scales = (draw.choice([0.5, 1.0, draw.choice(NUMBERS)]), 1.0)
        plan = ComparisonConfig(arms=arms, reference=reference_arm(arms), scales=scales, **odd)
        for each in plan.all_arms:
            trial = make_trial(each.name, plan.settings(each), 1, plan.scales[0], "a text")
            assert len(trial.digest) == 24

    found = fuzz(one_case)
    assert min(found["answered"], found["refused"]) > 0


def test_odd_command_lines_are_commands_or_refused(fuzz: Fuzz, tmp_path, monkeypatch, capsys):
    """They are read, and not run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mlx_attn.machine.device.use_device", lambda name: None)
    known: list[click.Command] = []
    with click.Context(group) as root:
        for command in filter(None, (group.get_command(root, name) for name in PROGRAMS)):
            inner = command.commands.values() if isinstance(command, click.Group) else [command]
            known += inner

    def argument(draw: Draw, command: click.Command) -> str:
        names = [name for parameter in command.params for name in parameter.opts]
        kinds = [draw.choice(names or ["x"]), str(odd_value(draw)), odd_text(draw, 12), "-", "--"]
        return draw.choice(kinds) + draw.choice(["", "", "=", f"={odd_value(draw)}"])

    def one_case(draw: Draw) -> None:
        command = draw.choice(known)
        words = [argument(draw, command) for _ in range(draw.randrange(6))]
        try:
            command.make_context(command.name, words, parent=root).close()
        except click.ClickException as error:
            raise ConfigError(error.format_message()) from error
        except click.exceptions.Exit:  # of --help
            pass
        capsys.readouterr()

    found = fuzz(one_case)
    assert min(found["answered"], found["refused"]) > 0


PARTS = (
    *(b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nFloatStorage\n", b"ctorch\nLongStorage\n"),
    *(
        b"ccollections\nOrderedDict\n",
        b"cposix\nsystem\n",
        b"X\x01\x00\x00\x00w",
        b"X\x01\x00\x00\x000",
    ),
    *(
        b"X\x07\x00\x00\x00storage",
        b"X\x03\x00\x00\x00cpu",
        b"(",
        b"t",
        b"]",
        b"}",
        b")",
        b"Q",
        b"R",
    ),
    *(b"s", b"u", b"e", b"a", b"K\x01", b"K\x04", b"J\xff\xff\xff\xff", b"\x89", b"N", b"0", b"1"),
    *(b"2", b"q\x00", b"h\x00", b"\x94", b"\x81", b"b", b"\x85", b"\x86", b"\x87", b"G" + bytes(8)),
)
"""Instructions of a pickle: those of a state dict, and some that are none of it."""


def state_dict(draw: Draw) -> bytes:
    """The program of a tensor whose numbers may be wrong."""
    view = [
        draw.choice([0, 1, 2, 4, -1, 2**31 - 1]) if draw.random() < 0.2 else n for n in (4, 0, 2, 2)
    ]
    size, offset, rows, step = (b"J" + struct.pack("<i", number) for number in view)
    storage = (
        b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    )
    tensor = storage + size + b"tQ" + offset + b"(" + rows + b"K\x02t(" + step + b"K\x01t\x89}tR"
    return b"}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n" + tensor + b"s"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of an escape in a pickle's string
def test_odd_programs_of_an_archive_are_weights_or_refused(fuzz: Fuzz, tmp_path):
    path = tmp_path / "model.pth"

    def one_case(draw: Draw) -> None:
        program = state_dict(draw)
        if draw.random() < 0.5:
            at = draw.randrange(len(program))
            odd = b"".join(draw.choices(PARTS, k=draw.randrange(6))) + draw.randbytes(
                draw.randrange(2)
            )
            program = program[:at] + odd + program[at + draw.randrange(4) :]
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as file:
            file.writestr("model/data.pkl", b"\x80\x02" + program + b".")
            file.writestr("model/data/0", struct.pack("<4f", 1, 2, 3, 4))
        path.write_bytes(content.getvalue())
        for array in read_checkpoint(path).values():
            assert {*np.array(array).ravel().tolist()} <= {1.0, 2.0, 3.0, 4.0}

    found = fuzz(one_case)
    assert min(found["answered"], found["refused"]) > 0


@pytest.fixture(scope="module")
def voice() -> LoadedRun:
    tokenizer = train_tokenizer("bpe", "the cat sat on the mat. " * 20, 320)
    sizes: dict[str, Any] = {"context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
    model = GPT(GPTConfig(vocab_size=tokenizer.vocab_size, **sizes))
    return LoadedRun(Run(Path("runs", "one"), {}), model, tokenizer)


def test_no_line_ends_a_conversation(fuzz: Fuzz, voice, tmp_path, monkeypatch):
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

    fuzz(one_case)


def test_no_sampler_draws_an_impossible_token(fuzz: Fuzz):
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
            np.array(sampler(mx.array(logits, mx.float32), mx.array([[3, 4]], mx.uint32)))[0, 0]
        )
        assert token in set(range(50)) - set(impossible)

    found = fuzz(one_case)
    assert min(found["answered"], found["refused"]) > 0
