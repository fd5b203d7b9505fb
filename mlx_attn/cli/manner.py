"""How `mlx-attn train` trains, as its flags say: what is shown, and what an interruption does."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.interruption import INTERRUPTED, Asked, orderly

if TYPE_CHECKING:
    from mlx_attn.show.progress import Display


@dataclass(frozen=True, slots=True)
class Manner:
    """Flags that change no number of a training.

    Attributes:
        dry_run: Show the plan and stop.
        as_json: Reports as JSON on stdout.
        quiet: No progress.
        together: "on", "off", "auto" or None: whether replicas take their steps as one.
    """

    dry_run: bool
    as_json: bool
    quiet: bool
    together: str | None

    def display(self) -> "Display":
        """The display that fits the flags and the terminal."""
        from mlx_attn.show.progress import display_for
        from mlx_attn.show.terminal import stderr_console

        return display_for(self.as_json, self.quiet, stderr_console())

    def show_plan(self, rows: list[tuple[str, str]], facts: dict[str, Any]) -> None:
        """The plan: before a training a message, alone a result."""
        from mlx_attn.show.terminal import print_rows, stderr_console, stdout_console

        if self.dry_run and self.as_json:
            click.echo(json.dumps(facts))
        elif self.dry_run:
            print_rows(rows, stdout_console())
        elif not (self.as_json or self.quiet):
            print_rows(rows, stderr_console())


def run_orderly(
    follow: Callable[[Asked], str], what_is_saved: Callable[[], str], display: "Display"
) -> None:
    """Train to the end, or until interrupted.

    Args:
        follow: Trains until the function that it is given says to stop; says why it ended.
        what_is_saved: What to say when the training was cut off.
        display: Takes messages.
    """
    from mlx_attn.show.training import INTERRUPTED as ASKED

    announce = "finishing this step; Ctrl-C again quits at once"
    try:
        with orderly(lambda: display.message(announce)) as asked:
            reason = follow(asked)
    except KeyboardInterrupt:
        display.message(what_is_saved())
        reason = ASKED
    if reason == ASKED:
        click.get_current_context().exit(INTERRUPTED)
