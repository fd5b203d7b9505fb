"""Options made from the configuration classes: each key once, with its own help.

Every option is None unless given, by flag or by an environment variable MLX_ATTN_KEY, so that the
layers below it show through.
"""

import os
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import click
from click.shell_completion import CompletionItem

PREFIX = "MLX_ATTN_"


class Named(click.ParamType):
    """A name that the shell can complete; the library checks it and suggests the nearest."""

    name = "name"

    def __init__(self, names: Iterable[str]):
        self.names = names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names that begin like that."""
        return [CompletionItem(name) for name in self.names if name.startswith(incomplete)]


class Section(click.Option):
    """An option that the help shows under a heading of its own."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.section = section

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """The flag, and the environment variable where that may be what was wrong."""
        given = isinstance(self.envvar, str) and self.envvar in os.environ
        return super().get_error_hint(ctx) + (f" (or {self.envvar})" if given else "")


class SectionedCommand(click.Command):
    """A command whose help groups its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, heading by heading, in the order of their first option."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record:
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def options_from(
    config: type, section: str, types: dict[str, click.ParamType], skip: frozenset[str]
) -> list[click.Option]:
    """An option for every field of a configuration class, under one heading.

    Args:
        config: A dataclass whose fields have defaults and a `help` in their metadata.
        section: The heading.
        types: Types of options that are more than their default's type says.
        skip: Fields that are not options.
    """
    return [
        _option(field.name, type(field.default), str(field.metadata["help"]), section, types)
        for field in fields(config)
        if field.name not in skip
    ]


def _option(
    name: str, kind: type, text: str, section: str, types: dict[str, click.ParamType]
) -> click.Option:
    flag = "--" + name.replace("_", "-")
    declaration = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    return Section(
        [declaration, name],
        section=section,
        type=None if kind is bool else types.get(name, kind),
        default=None,
        help=text,
        metavar=None if kind is bool else _METAVARS.get(kind),
        envvar=PREFIX + name.upper(),
    )


_METAVARS: dict[type, str] = {int: "N", float: "X", str: "NAME"}
