"""A comparison from Python: which form of attention is better, and how sure that is."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from mlx_attn import files
from mlx_attn.comparison import show
from mlx_attn.comparison.figures import forest_figure
from mlx_attn.comparison.report import conclude
from mlx_attn.comparison.result import Comparison
from mlx_attn.comparison.run import open_comparison
from mlx_attn.comparison.stages import ComparisonEvent
from mlx_attn.errors import python_words
from mlx_attn.keys import check_number, validate
from mlx_attn.plugins import Plugins, load_named_plugins
from mlx_attn.ui.plots import figure_for_page
from mlx_attn.ui.terminal import as_html


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """A finished comparison.

    Attributes:
        comparison: Every number of it.
        directory: The directory of its trainings and its report.
    """

    comparison: Comparison
    directory: Path

    @property
    def answers(self) -> dict[str, tuple[str, str]]:
        """The word on every arm and the sentence that states it."""
        comparison = self.comparison
        return {arm: show.answer_of(comparison, arm) for arm in comparison.judged}

    def __repr__(self) -> str:
        lines = [f"{word}: {sentence}" for word, sentence in self.answers.values()]
        notes = show.notes_of(self.comparison)
        return "\n".join([show.question_of(self.comparison), *lines, *notes])

    def __rich__(self) -> Group:
        return Group(*show.tables_of(self.comparison))

    def _repr_html_(self) -> str:
        figure = figure_for_page(partial(forest_figure, self.comparison))
        return as_html(Text(repr(self))) + str(figure) + as_html(self.__rich__())


@python_words()
def compare(
    *arms: str,
    out: str | Path | None = None,
    jobs: int = 0,
    on: str = "",
    on_event: Callable[[ComparisonEvent], None] | None = None,
    plugins: Plugins = (),
    **settings: Any,
) -> ComparisonResult:
    """Say which form of attention is better, and how sure that is.

    Args:
        arms: Two or more, the control first: "standard", "merged", "one head: standard, n_heads=1".
        out: Directory of the trainings; a second call with it trains only the missing ones.
        jobs: Processes at once; 0 is one for every core. In a script, call it under
            `if __name__ == "__main__":`, because processes are spawned.
        on: The address of a Dask scheduler whose workers train, such as "tcp://mac1.local:8786".
        on_event: Called with each event as it happens.
        plugins: Files with your own choices and variants.
        settings: As on the command line, with underscores: seeds, delta, tune and the other fields
            of `ComparisonConfig`; and what all arms share, such as preset, steps, data.

    Raises:
        ConfigError: A setting or an arm cannot work.
        RunError: A training failed.
    """
    validate({"jobs": jobs, "on": on}, {"jobs": int, "on": str})
    check_number("jobs", jobs, 0)
    load_named_plugins(plugins, settings)
    place = None if out is None else files.user_path(out)
    settings |= {"arms": arms} if arms else {}
    run, directory = open_comparison(settings, "mlx_attn.compare", place, jobs, on)
    with files.lock(directory):
        comparison = conclude(run, directory, on_event or (lambda event: None))
    return ComparisonResult(comparison, directory)
