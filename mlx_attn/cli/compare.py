"""The options of `mlx-attn compare`: its own, and the options of `train` that all arms share."""

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mlx_attn.attention.config import VARIANTS
from mlx_attn.cli.main import INTERRUPTED, signals_interrupt
from mlx_attn.cli.options import (
    TRAIN_OPTIONS,
    TRIAL_OPTIONS,
    Named,
    SectionedCommand,
    UserPath,
    grouped,
)
from mlx_attn.cli.output import emit
from mlx_attn.files import lock
from mlx_attn.runs import RUNS

if TYPE_CHECKING:
    from mlx_attn.comparison.plan import ComparisonConfig
    from mlx_attn.comparison.run import ComparisonRun

_OWN = {"variant", "seed", "init_seed", "eval_every", "save_every", "log_every", "track"}
_OWN |= {"patience", "epochs", "minutes"}
"""Settings that a comparison makes itself."""

_PLAIN = ("seeds", "confidence", "tuning_seeds", "question", "reference", "delta")
"""Options that the protocol takes as they are."""

_FROM_DELTA = "0.01"
"""The margin of `--from`, in nats per token."""

_WHERE = ("jobs", "on", "dry_run", "quiet")
"""Options that say where trainings run, and how much is shown."""


def _numbers(context: click.Context, option: click.Parameter, text: str) -> tuple[float, ...]:
    """Return the numbers of an option's list."""
    try:
        return tuple(map(float, text.split(","))) if text else ()
    except ValueError as error:
        raise click.BadParameter(
            f"'{text}' must be numbers between commas, such as 0.5,1,2"
        ) from error


_subject, _certainty, _run = (
    partial(grouped, section) for section in ("What to compare", "How sure", "The run")
)
_OWN_OPTIONS: list[click.Option] = [
    _subject(
        "--variants",
        type=Named(VARIANTS, ","),
        default="",
        metavar="A,B",
        help="variants; the first is the control",
    ),
    _subject(
        "--arm",
        "arms",
        multiple=True,
        metavar="TEXT",
        help="an arm with settings: 'one head: merged, n_heads=1'; repeatable",
    ),
    _subject(
        "--from",
        "results",
        type=UserPath(),
        metavar="FILE",
        help="judge runs of any program: a CSV file of arm, seed, loss; trains nothing, and the "
        "first arm is the control",
    ),
    _subject("--question", default="", metavar="TEXT", help="a sentence for the report's head"),
    _subject(
        "--reference",
        default="auto",
        metavar="ARM",
        help="an arm without the part in question, which says what it is worth; none: no such arm",
    ),
    _certainty("--seeds", default=8, help="trainings of every arm that the verdict rests on"),
    _certainty(
        "--delta",
        default="5%",
        metavar="MARGIN",
        help="smaller differences count as none: 5% is the worth of 5 % of the tokens, 0.01 is in "
        "nats; --from takes nats (default there: 0.01)",
    ),
    _certainty("--confidence", default=0.95, help="of the intervals"),
    _certainty("--tune/--no-tune", default=True, help="search each arm's learning rate"),
    _certainty(
        "--scales",
        default="0.5,1,2",
        callback=_numbers,
        metavar="LIST",
        help="factors of the learning rates to begin with",
    ),
    _certainty(
        "--tuning-seeds",
        default=2,
        help="seeds for each factor, fewer if tuning would train more than the verdict",
    ),
    _run(
        "--out",
        "-o",
        type=UserPath(),
        metavar="DIR",
        help="directory of the trainings and the report (default: in runs/)",
    ),
    *TRIAL_OPTIONS,
    _run(
        "--on",
        default="",
        metavar="ADDRESS",
        help="train on the workers of a Dask scheduler, such as tcp://mac1.local:8786",
    ),
    _run("--json", "as_json", is_flag=True, help="the result as one JSON object"),
]

_TRAIN_OPTIONS = [
    option
    for option in TRAIN_OPTIONS
    if option.name in ("preset", "block", "plugin", "dry_run", "quiet")
    or (getattr(option, "section", "") in ("Text", "Model", "Training") and option.name not in _OWN)
]


_DEFAULT_ARMS = ("standard", "merged", "no-query", "no-out-proj")
_EXAMPLES = """\b
Examples:
  mlx-attn compare                                  four variants, eight seeds
  mlx-attn compare --variants standard,no-query --seeds 10
  mlx-attn compare --arm standard --arm 'one head: standard, n_heads=1'
  mlx-attn compare --from results.csv               runs of any program: arm, seed, loss
  mlx-attn compare --on tcp://mac1.local:8786         on the workers of a Dask scheduler
The same command continues where it was interrupted: finished trainings are kept.
"""


def compare(
    variants: str,
    arms: tuple[str, ...],
    results: Path | None,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Say which form of attention is better, and how sure that is.

    Every arm gets its own learning rate, tuned on separate seeds; then all arms are trained with
    the same fresh seeds, batches and validation windows, and the differences to the first arm, the
    control, are judged in pairs: better, worse, the same or not known.
    """
    if results:
        _judge_file(results, options["delta"], options["confidence"], as_json)
        return
    where = {key: options.pop(key) for key in _WHERE}
    protocol = _protocol([*(variants.split(",") if variants else ()), *arms], out, options)
    _plan_or_train(protocol, out or RUNS / protocol.name, as_json, **where)


def _plan_or_train(
    protocol: "ComparisonConfig",
    directory: Path,
    as_json: bool,
    *,
    jobs: int,
    on: str,
    dry_run: bool,
    quiet: bool,
) -> None:
    from mlx_attn.comparison.run import ComparisonRun
    from mlx_attn.comparison.runner import Runner
    from mlx_attn.comparison.show import plan_rows
    from mlx_attn.comparison.trial import Store

    run = ComparisonRun(protocol, Runner(Store(directory / "trainings"), jobs, on))
    if dry_run:
        rows = plan_rows(run)
        emit(dict(rows), as_json, lambda: [rows])
        return
    with lock(directory):
        _train_and_judge(run, directory, as_json, quiet)


def _judge_file(file: Path, delta: str, confidence: float, as_json: bool) -> None:
    """Show the verdicts on losses that any program wrote."""
    from dataclasses import asdict

    from mlx_attn.comparison.plan import margin_from
    from mlx_attn.comparison.result import judge_losses, read_losses
    from mlx_attn.comparison.show import verdict_lines

    context = click.get_current_context()
    used = ("results", "delta", "confidence", "as_json")
    ignored = [
        f"--{name.replace('_', '-')}"
        for name in context.params
        if name not in used and _is_flag(context, name)
    ]
    if ignored:
        raise click.UsageError(
            f"--from judges finished runs and trains none: leave out {', '.join(ignored)}"
        )
    # Nothing is trained, so the default cannot be one in tokens.
    margin = margin_from(delta if _is_flag(context, "delta") else _FROM_DELTA)
    if "delta" not in margin:
        raise click.UsageError("--from has no trainings that measure tokens: give --delta in nats")
    losses = read_losses(file)
    verdicts = judge_losses(losses, margin["delta"], confidence)
    control = next(iter(losses))
    rows = {arm: asdict(verdict) for arm, verdict in verdicts.items()}
    lines = verdict_lines(control, verdicts, confidence)
    emit({"control": control, "verdicts": rows}, as_json, lambda: lines)


def _is_flag(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) == ParameterSource.COMMANDLINE


def _protocol(
    texts: Sequence[str], out: Path | None, options: dict[str, Any]
) -> "ComparisonConfig":
    """Return the comparison that the options describe; the remaining ones are for all arms."""
    from mlx_attn.comparison.plan import ComparisonConfig

    scales, tune = options.pop("scales"), options.pop("tune")
    own: dict[str, Any] = {key: options.pop(key) for key in _PLAIN}
    # Flags come last, and so override the environment.
    context = click.get_current_context()
    shared = sorted(options.items(), key=lambda option: _is_flag(context, option[0]))
    return ComparisonConfig.of(
        texts or _DEFAULT_ARMS,
        name=out.name if out else "",
        shared={key: value for key, value in shared if value is not None},
        scales=scales if tune else (1.0,),
        command=shlex.join(["mlx-attn", *sys.argv[1:]]),
        **own,
    )


def _train_and_judge(run: "ComparisonRun", directory: Path, as_json: bool, quiet: bool) -> None:
    """Compare, keep the result and its report, and show the verdicts on stdout."""
    from mlx_attn.comparison.report import write_report
    from mlx_attn.comparison.run import conclude
    from mlx_attn.comparison.runner import KEPT
    from mlx_attn.comparison.show import Display, comparison_parts
    from mlx_attn.ui.terminal import stderr_console

    with Display(stderr_console(), quiet or as_json) as display, signals_interrupt():
        try:
            comparison = conclude(run, directory, display)
        except KeyboardInterrupt:
            display.message(f"interrupted; {KEPT}")
            click.get_current_context().exit(INTERRUPTED)
    page = write_report(comparison, directory)
    emit(comparison.as_dict(), as_json, lambda: [*comparison_parts(comparison), "", page])


command = SectionedCommand(
    "compare",
    callback=compare,
    params=[*_OWN_OPTIONS, *_TRAIN_OPTIONS],
    help=compare.__doc__,
    epilog=_EXAMPLES,
)
