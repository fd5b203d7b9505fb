"""`mlx-attn compare`: the settings of a comparison, and of the training that all arms share."""

import shlex
import sys
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.cli.main import INTERRUPTED, UNREAD, OutOfTime, signals_interrupt
from mlx_attn.cli.options import (
    TRAIN_OPTIONS,
    GroupedOption,
    Named,
    SectionedCommand,
    UserPath,
    given,
    layers_of,
    options_from,
    settings_in,
)
from mlx_attn.cli.output import emit, note
from mlx_attn.comparison.config import MADE_HERE, OF_VARIANTS, ComparisonConfig
from mlx_attn.errors import ConfigError
from mlx_attn.files import lock
from mlx_attn.keys import check_number

if TYPE_CHECKING:
    from mlx_attn.comparison.judging import Verdict
    from mlx_attn.comparison.run import ComparisonRun
    from mlx_attn.comparison.show import Display

_MADE_HERE = {*OF_VARIANTS, *MADE_HERE, "epochs", "minutes"}
"""Settings of a training that the arms or the comparison make."""

_SHARED = {"preset", "block", "plugin", "config", "dry_run", "device", "quiet"}
"""Options of `train`, besides its settings."""

_FROM_DELTA = "0.01"
"""The margin of `--from`, in nats per token."""

_NO_TOKENS = "has no trainings that measure tokens: give --delta in nats"

_NOT_OF_IDEAS = {"reference", "dry_run", "seeds", "confidence", "tune", "scales", "tuning_seeds"}
_OWN_RULE = "--ideas has a rule of its own, and no tuning"

Answer = tuple[dict[str, Any], Callable[[], Iterable[Any]]]
"""What JSON says, and what shows it to people."""

STATUS = {"better": 0, "worse": 10, "the same": 11, "not known": 12}
"""The exit status that `--exit-code` gives each word."""

_subject, _run = partial(GroupedOption, "What to compare"), partial(GroupedOption, "The run")
_OPTIONS: list[click.Option] = [
    _subject(
        "--variants",
        type=Named(VARIANTS, ","),
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
        "--reference",
        metavar="ARM",
        help="an arm without the part in question, which says what it is worth; none: no such arm",
        rare=True,
    ),
    _subject(
        "--from",
        "results",
        type=UserPath(),
        metavar="FILE",
        help="judge runs of any program: a CSV file of arm, seed, loss; trains nothing, and the "
        "first arm is the control",
    ),
    _subject(
        "--ideas",
        is_flag=True,
        help="judge the second arm as an idea of a loop, untuned, with 3 to 10 seeds; the ledger "
        "in --out (default: runs/ideas) keeps one that does nothing in at most 5 % of loops, if "
        "ideas vary about as the control does; a better one becomes the control",
        rare=True,
    ),
    *options_from(ComparisonConfig, "How sure", shows_defaults=True),
    _run(
        "--out",
        "-o",
        type=UserPath(),
        metavar="DIR",
        help="directory of the trainings and the report (default: in runs/)",
    ),
    _run(
        "--jobs",
        type=click.IntRange(0),
        default=0,
        metavar="N",
        help="trainings at once (0: one for every core, one on a GPU)",
        rare=True,
    ),
    _run(
        "--on",
        default="",
        metavar="ADDRESS",
        help="train on the workers of a Dask scheduler, such as tcp://mac1.local:8786",
    ),
    _run(
        "--minutes",
        "limit",
        type=click.FloatRange(min=0, min_open=True),
        metavar="X",
        help="end after this time; the same command continues",
        rare=True,
    ),
    _run("--json", "as_json", is_flag=True, help="the result as one JSON object", rare=True),
    _run(
        "--exit-code",
        is_flag=True,
        help="exit with the word on the second of two arms: better 0, worse 10, the same 11, not "
        "known 12",
        rare=True,
    ),
    *(
        option
        for option in TRAIN_OPTIONS
        if option.name in _SHARED
        or (
            getattr(option, "section", "") in ("Text", "Model", "Training")
            and option.name not in _MADE_HERE
        )
    ),
]

_EXAMPLES = """\b
Examples:
  mlx-attn compare                                  four variants, eight seeds, 500 steps of nano
  mlx-attn compare --variants standard,no-query --seeds 10
  mlx-attn compare --arm standard --arm 'one head: standard, n_heads=1'
  mlx-attn compare --from results.csv               runs of any program: arm, seed, loss
  mlx-attn compare --ideas --plugin idea.py --variants standard,idea --minutes 10
  mlx-attn compare --on tcp://mac1.local:8786       on the workers of a Dask scheduler
The same command continues where it was interrupted: finished trainings are kept.
"""


@click.command(cls=SectionedCommand, params=_OPTIONS, epilog=_EXAMPLES)
def command(
    results: Path | None, as_json: bool, exit_code: bool, quiet: bool, **options: Any
) -> None:
    """Say which form of attention is better, and how sure that is.

    Every arm gets its own learning rate, tuned on separate seeds; then all arms are trained with
    the same fresh seeds, batches and validation windows, and the differences to the first arm, the
    control, are judged in pairs: better, worse, the same or not known.
    """
    context = click.get_current_context()
    context.meta[UNREAD] = STATUS["not known"] if exit_code else 0
    if results:
        record, shown = _judge_file(results, options["delta"], options["confidence"], exit_code)
    else:
        options |= {"quiet": quiet or as_json, "exit_code": exit_code}
        with redirect_stdout(sys.stderr):  # whatever a user's functions print
            record, shown = _judge_trainings(**options)
    if exit_code:
        context.meta[UNREAD] = STATUS.get(record.get("verdict", ""), 0)
    emit(record, as_json, shown)
    context.exit(context.meta[UNREAD])


def _judge_trainings(
    ideas: bool,
    out: Path | None,
    jobs: int,
    on: str,
    dry_run: bool,
    limit: float | None,
    exit_code: bool,
    quiet: bool,
    **options: Any,
) -> Answer:
    """Train the arms and judge them; with `dry_run` return the plan."""
    from mlx_attn.comparison.run import open_comparison
    from mlx_attn.comparison.runner import KEPT
    from mlx_attn.comparison.show import Display, plan_rows
    from mlx_attn.runs import RUNS
    from mlx_attn.ui.terminal import stderr_console

    check_number("minutes", limit or 0, 0, 1e6)  # a Mac's timer goes to 1e8 seconds
    settings = _settings_asked(ideas, **options)
    asked = shlex.join(["mlx-attn", *sys.argv[1:]])
    out = out or (RUNS / "ideas" if ideas else None)
    judge = _judge_idea if ideas else _train_and_judge
    try:
        with signals_interrupt(60 * (limit or 0)):
            run, directory = open_comparison(settings, asked, out, jobs, on)
            _check_words(len(run.config.arms) - 1, exit_code)
            note(*run.corpus.notes)
            if dry_run:
                rows = plan_rows(run)
                return dict(rows), lambda: [rows]
            with lock(directory), Display(stderr_console(), quiet) as display:
                return judge(run, directory, display)
    except OutOfTime:
        reason = f"the time was over before the last training ended; {KEPT}"
        answer = _single({"": "not known"}, {}) | {"is_open": True, "reason": reason}
        return answer, lambda: [f"not known: {reason}"]
    except KeyboardInterrupt:
        note(f"interrupted; {KEPT}")
        click.get_current_context().exit(INTERRUPTED)


def _settings_asked(
    ideas: bool, variants: str | None, arms: tuple[str, ...], config: Path | None, **options: Any
) -> dict[str, Any]:
    """Return the settings of a comparison; ideas have a rule of their own, and no tuning."""
    environment, flags = layers_of(options)
    file: dict[str, Any] = {}
    if config:  # whose reference may go with the arms of the flags
        file = settings_in(config, lambda each: ComparisonConfig.of({**each, "reference": "none"}))
    settings = {**file, **environment, **flags}
    asked = {"variants": variants.split(",") if variants is not None else (), "arms": arms}
    # In the order of the command line, because the first arm is the control.
    if named := [arm for key in click.get_current_context().params for arm in asked.get(key, ())]:
        settings["arms"] = named
    if ideas:
        _refuse(_OWN_RULE, _NOT_OF_IDEAS)
        for place, layer in ((config, file), ("the environment", environment)):
            if ignored := sorted(_NOT_OF_IDEAS & layer.keys()):
                raise ConfigError(f"{place}: {_OWN_RULE}: leave out {', '.join(ignored)}")
        if str(settings.get("delta", "")).endswith("%"):
            raise click.UsageError(f"--ideas {_NO_TOKENS}")
        settings |= {"tune": False, "reference": "none"}
    return settings


def _check_words(count: int, exit_code: bool) -> None:
    """Refuse a single status for several words."""
    if exit_code and count != 1:
        raise click.UsageError("--exit-code is the word on one arm: compare it with the control")


def _refuse(why: str, names: Container[str | None]) -> None:
    """Refuse options that were given and would be ignored."""
    context = click.get_current_context()
    ignored = [
        option.opts[0]
        for option in context.command.params
        if option.name in names
        and context.get_parameter_source(str(option.name)) == ParameterSource.COMMANDLINE
    ]
    if ignored:
        raise click.UsageError(f"{why}: leave out {', '.join(ignored)}")


def _judge_file(file: Path, delta: str | None, confidence: float | None, exit_code: bool) -> Answer:
    """Judge losses that any program wrote."""
    from rich.text import Text

    from mlx_attn.comparison.losses import judge_losses, read_losses
    from mlx_attn.comparison.show import verdict_lines

    others = {option.name for option in click.get_current_context().command.params}
    others -= {"results", "delta", "confidence", "as_json", "exit_code"}
    _refuse("--from judges finished runs and trains none", others)
    # Nothing is trained, so the default cannot be one in tokens.
    asked = given({"delta": delta, "confidence": confidence})
    config = ComparisonConfig(arms=(), **{"delta": _FROM_DELTA, **asked})
    if not config.margin.nats:
        raise click.UsageError(f"--from {_NO_TOKENS}")
    losses = read_losses(file)
    _check_words(len(losses) - 1, exit_code)
    verdicts = judge_losses(losses, config.margin.nats, config.confidence)
    control = next(iter(losses))
    rows = {arm: asdict(verdict) for arm, verdict in verdicts.items()}
    answer = _single({arm: one.word for arm, one in verdicts.items()}, verdicts)
    lines = map(Text, verdict_lines(control, verdicts, config.confidence))
    return {"control": control, "verdicts": rows, **answer}, lambda: lines


def _judge_idea(run: "ComparisonRun", directory: Path, display: "Display") -> Answer:
    """Judge the next idea of a ledger."""
    from mlx_attn.comparison.ideas import IdeaRun

    step = IdeaRun(run, directory)
    with suppress(OutOfTime):  # the ledger holds the result so far
        for event in step:
            display(event)
    record = {"against": step.control.name, **asdict(step.idea)}
    return record, lambda: [[(name, str(value)) for name, value in record.items()]]


def _train_and_judge(run: "ComparisonRun", directory: Path, display: "Display") -> Answer:
    """Compare, and keep result and report."""
    from mlx_attn.comparison.report import REPORT, conclude
    from mlx_attn.comparison.show import comparison_parts

    comparison = conclude(run, directory, display)
    words = {arm.name: comparison.word(arm.name) for arm in run.config.arms[1:]}
    parts = [*comparison_parts(comparison), "", directory / REPORT]
    return {**asdict(comparison), **_single(words, comparison.verdicts)}, lambda: parts


def _single(words: Mapping[str, str], verdicts: "Mapping[str, Verdict]") -> dict[str, Any]:
    """Return the answer to a single arm; nothing for several."""
    if len(words) != 1:
        return {}
    ((arm, word),) = words.items()
    answer = {"verdict": word, "difference": None, "interval": None, "seeds": 0}
    if verdict := verdicts.get(arm):
        answer |= {"difference": verdict.mean, "interval": verdict.interval}
        answer |= {"seeds": len(verdict.differences)}
    return answer
