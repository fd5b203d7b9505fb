"""Options made from the configuration classes: each key once, with its own help.

Every option is None unless given, by flag or by an environment variable MLX_ATTN_KEY, so that the
layers below it show through.
"""

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from mlx_attn.about import PREFIX
from mlx_attn.attention.catalog import CHOICES, MAPS, VARIANTS
from mlx_attn.cli.output import say
from mlx_attn.comparison.config import ComparisonConfig
from mlx_attn.errors import ConfigError, did_you_mean
from mlx_attn.files import user_path
from mlx_attn.keys import keys_of
from mlx_attn.model import config as model
from mlx_attn.model.config import PRESETS
from mlx_attn.records import read_toml
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.training import config as training
from mlx_attn.training.config import TextConfig


class Named(click.ParamType):
    """A name that the shell can complete; the library checks it and suggests the nearest.

    With a separator there may be several names, of which the last is completed.
    """

    name = "name"

    def __init__(self, names: Iterable[str], separator: str = ""):
        self._names, self._separator = names, separator

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin like that."""
        at = incomplete.rfind(self._separator) + 1 if self._separator else 0
        done, start = incomplete[:at], incomplete[at:]
        return [CompletionItem(done + name) for name in self._names if name.startswith(start)]


_METAVARS: dict[type, str] = {int: "N", float: "X", str: "NAME"}


class GroupedOption(click.Option):
    """An option under a heading of the help, with its default; `--help-all` shows rare ones too."""

    def __init__(self, section: str, *names: str, rare: bool = False, **attributes: Any):
        self.section, self.rare, default = section, rare, attributes.get("default")
        attributes.setdefault("metavar", _METAVARS.get(attributes.get("type") or type(default)))
        super().__init__(names, show_default=bool(default), **attributes)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the flag, and the environment variable if the value came from it."""
        is_variable_set = isinstance(self.envvar, str) and self.envvar in os.environ
        return super().get_error_hint(ctx) + (f" (or {self.envvar})" if is_variable_set else "")


class UserPath(click.Path):
    """A path that a file can have, with `~` expanded."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; ConfigError if no file can have this name."""
        return super().convert(user_path(value), param, ctx)


_PATH = UserPath()


def numbers(text: str) -> tuple[float, ...]:
    """Return the numbers between commas; a usage error for any other text."""
    try:
        return tuple(map(float, text.split(",")))
    except ValueError as error:
        way_out = "must be numbers between commas, such as 0.5,1,2"
        raise click.BadParameter(f"'{text}' {way_out}") from error


def _load_plugins(ctx: click.Context, param: click.Parameter, files: Sequence[str | Path]) -> None:
    """Load a user's files before any other option is read."""
    if files:
        from mlx_attn import plugins

        plugins.load_plugins(files)


PLUGIN = GroupedOption(
    "The run",
    "--plugin",
    type=_PATH,
    multiple=True,
    is_eager=True,
    expose_value=False,
    callback=_load_plugins,
    metavar="FILE",
    help="a Python file with your own choices and variants; repeatable",
    envvar=PREFIX + "PLUGINS",
    rare=True,
)
"""A user's files; a command's function is not given them."""


def _choose_device(ctx: click.Context, param: click.Parameter, name: str | None) -> None:
    """Choose the device before any array is made."""
    if name and not ctx.resilient_parsing:
        from mlx_attn.machine.device import use_device

        use_device(name)


_DEVICE = GroupedOption(
    "The run",
    "--device",
    type=click.Choice(("cpu", "gpu")),
    is_eager=True,
    expose_value=False,
    callback=_choose_device,
    metavar="cpu|gpu",
    help="compute on the processor or on the GPU (default: the GPU if there is one)",
    envvar=PREFIX + "DEVICE",
    rare=True,
)


def takes_device(command: click.Command) -> click.Command:
    """Add `--device` to a command, and to the commands below it, unless they have one."""
    for child in command.commands.values() if isinstance(command, click.Group) else ():
        takes_device(child)
    if all(param.name != "device" for param in command.params):
        command.params.append(_DEVICE)
    return command


def takes_plugins(command: click.Command) -> click.Command:
    """Add `--plugin` to a command."""
    command.params.append(PLUGIN)
    return command


def preset_option(section: str, default: str | None = None) -> GroupedOption:
    """Return the option that names a preset."""
    return GroupedOption(
        section,
        "--preset",
        type=Named(PRESETS),
        default=default,
        help=f"settings that belong together: {', '.join(PRESETS)}",
        envvar=PREFIX + "PRESET",
    )


_HELP_ALL = "mlx_attn.help_all"


class SectionedCommand(click.Command):
    """A command whose help groups its options under headings; `--help-all` shows rare ones too."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        flags: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
        text = "Show all options and exit."
        help_all = click.Option(["--help-all"], **flags, callback=self._help_all, help=text)
        self.params = [*self.params, help_all]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, heading by heading, in the order of their first option."""
        shows_all = _HELP_ALL in ctx.meta
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            is_shown = shows_all or not getattr(option, "rare", False)
            if is_shown and (record := option.get_help_record(ctx)):
                sections.setdefault(getattr(option, "section", "Options"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    @staticmethod
    def _help_all(ctx: click.Context, option: click.Parameter, is_wanted: bool) -> None:
        if is_wanted:
            ctx.meta[_HELP_ALL] = True
            say(ctx.get_help())
            ctx.exit()


_TYPES: dict[str, Any] = {
    "scales": numbers,
    # Their modules import MLX, and so are asked only when a name is completed.
    **{key: Named(CHOICES[key], "+") for key in (*MAPS, "position")},
}


SHOWN_SETTINGS = (
    "data tokenizer steps minutes lr seed seeds delta tune "
    "context_length emb_dim n_heads n_layers window position"
)
"""The settings that most people need: every command that has them shows them."""


def options_from(
    config: type,
    section: str,
    skip: frozenset[str] = frozenset(),
    shows_defaults: bool = False,
) -> list[click.Option]:
    """Return an option for every setting of a configuration class, but those to skip.

    Settings are the fields with a `help` in their metadata; presets change most defaults.
    """
    options: list[click.Option] = []
    kinds = keys_of(config)
    for field in fields(config):
        name, flag = field.name, field.name.replace("_", "-")
        if name in skip or name not in kinds:
            continue
        text, words, kind = field.metadata["help"], field.metadata["words"], kinds[name]
        default: Any = field.default
        if words:
            text += f": {', '.join(words[:-1])} or {words[-1]}"
        if shows_defaults and default is not True and default not in ("", None):
            text += f"  [default: {','.join(map(str, default)) if kind is tuple else default}]"
        options.append(
            GroupedOption(
                section,
                f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}",
                type=None if kind is bool else Named(words) if words else _TYPES.get(name, kind),
                default=None,
                help=text,
                envvar=PREFIX + name.upper(),
                rare=name not in SHOWN_SETTINGS.split(),
            )
        )
    return options


SIZES = options_from(model.GPTConfig, "Sizes", frozenset({*MAPS, "pattern"}))
"""The sizes of a model, without the maps that a variant chooses."""

SHORTHANDS = {
    "--no-out-proj": "no-out-proj",
    "--merge-qk": "merged",
    "--no-query": "no-query",
    "--no-value": "no-value",
}
"""Flags that choose the map of a variant, whatever another variant says of it."""


_what, _run = partial(GroupedOption, "What to train"), partial(GroupedOption, "The run")


def _shorthand(flag: str) -> GroupedOption:
    text = f"change what --variant {SHORTHANDS[flag]} changes, whatever the variant"
    return _what(flag, is_flag=True, help=text, rare=flag not in ("--no-out-proj", "--merge-qk"))


TRAIN_OPTIONS: list[click.Option] = [
    _what(
        "--variant",
        type=Named(VARIANTS),
        help="attention by name; `mlx-attn variants` lists them",
        envvar=PREFIX + "VARIANT",
    ),
    preset_option("What to train"),
    _what(
        "--block",
        type=Named(model.BLOCKS),
        help=f"norm, activation and biases: {' or '.join(model.BLOCKS)}",
        envvar=PREFIX + "BLOCK",
        rare=True,
    ),
    *map(_shorthand, SHORTHANDS),
    _run("--out", "-o", type=_PATH, metavar="DIR", help="the run's directory (default: in runs/)"),
    _run("--name", metavar="NAME", help="the run's name in runs/"),
    _run("--overwrite", is_flag=True, help="replace an existing run", rare=True),
    _run("--resume", metavar="RUN", help="continue that run: a directory or a name"),
    _run(
        "--init-from", metavar="RUN", help="start with that run's weights and settings", rare=True
    ),
    PLUGIN,
    _run("--config", type=_PATH, metavar="FILE", help="settings in a TOML file", rare=True),
    _run(
        "--log-to",
        type=click.Choice(("tensorboard", "wandb", "trackio")),
        help="send the numbers there too; install it first",
        rare=True,
    ),
    _run("--dry-run", is_flag=True, help="show the plan and stop"),
    _DEVICE,
    _run("--json", "as_json", is_flag=True, help="one JSON object a line on stdout", rare=True),
    _run("--quiet", "-q", is_flag=True, help="no progress", rare=True),
    *options_from(TextConfig, "Text"),
    *options_from(model.GPTConfig, "Model", frozenset({"vocab_size"})),
    *options_from(training.TrainConfig, "Training"),
]


def given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a flag or the environment gives."""
    return {key: value for key, value in settings.items() if value is not None}


def layers_of(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the environment, and of the flags with shorthands expanded."""
    source = click.get_current_context().get_parameter_source
    chosen = given(options)
    names = {flag: flag[2:].replace("-", "_") for flag in SHORTHANDS}
    shorthands = [flag for flag, name in names.items() if chosen.pop(name, False)]
    environment = {k: v for k, v in chosen.items() if source(k) is ParameterSource.ENVIRONMENT}
    flags = {k: v for k, v in chosen.items() if k not in environment}
    asked = {key: f"--{key}" for key in flags}
    for flag in shorthands:
        maps = dict(VARIANTS[SHORTHANDS[flag]].maps.items() - MAPS.items())
        for key, value in maps.items():
            if flags.get(key, value) != value:
                raise ConfigError(
                    f"{asked[key]} and {flag} do not combine: each says what the {key} map is, "
                    f"{flags[key]} or {value}: leave one out"
                )
            asked[key] = flag
        flags |= maps
    return environment, flags


_TABLES = ("comparison", "model", "training", "text")


def settings_in(path: Path, check: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return the settings in a TOML file, flattened; `check` raises a ConfigError about them."""
    content = read_toml(path)
    settings: dict[str, Any] = {}
    try:
        for key, value in content.items():
            if isinstance(value, dict) and key not in _TABLES:
                raise ConfigError(f"unknown table [{key}]{did_you_mean(key, _TABLES)}")
            table = value if isinstance(value, dict) else {key: value}
            if twice := sorted(settings.keys() & table):
                raise ConfigError(f"{', '.join(twice)}: set twice, and tables only group settings")
            settings |= table
        check(settings)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return settings


_CONFIGS = (ComparisonConfig, TextConfig, model.GPTConfig, training.TrainConfig, SamplerConfig)
_OTHERS = (
    "variant preset block plugins max_tokens num_samples ignore_eos prompt "
    "blas code_path device data_dir peers_python"
)
VARIABLES = {PREFIX + name.upper() for name in (*keys_of(*_CONFIGS), *_OTHERS.split())}
"""Every environment variable that is read; a test compares them with the commands' options."""


def check_environment() -> None:
    """Refuse misspelt variables: a setting that is silently ignored is worse than none."""
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in VARIABLES:
            close = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.8)
            hint = f": did you mean {close[0]}?" if close else ": unset it"
            raise ConfigError(f"unknown environment variable {name}{hint}")
