"""`mlx-attn claims`: register, run and verify the studies behind docs/answers.md."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.main import INTERRUPTED, signals_interrupt
from mlx_attn.cli.options import FiniteRange, UserPath
from mlx_attn.cli.output import emit, say
from mlx_attn.errors import RunError, plural
from mlx_attn_studies import CONFIRMS, FOLLOW_UPS

if TYPE_CHECKING:
    from mlx_attn.comparison.runner import Runner
    from mlx_attn_studies.book import RecordBook
    from mlx_attn_studies.findings import Finding
    from mlx_attn_studies.page import StudyPage
    from mlx_attn_studies.study import Study

_EXAMPLES = """\b
Examples:
  mlx-attn claims show output
  mlx-attn claims verify
  mlx-attn claims register
  mlx-attn claims run --world tales --minutes 60
  mlx-attn claims run --study widths
  mlx-attn claims run --data notes.txt --question query --delta 0.02 --seeds 8
"""


_REGISTRATION = "registration.json"


def _folder() -> Path:
    """Return the answers of the clone that one works in, elsewhere a folder of runs."""
    own = Path("docs/answers")
    return own if (own / _REGISTRATION).is_file() else Path("runs/answers")


def _measured() -> Path:
    """Return the answers of this folder, else those that were measured for this package."""
    here, package = _folder(), Path(__file__).parent
    # In a wheel, and in a clone of the repository.
    places = package / "measured", package.parent / "docs" / "answers"
    return here if here.exists() else next(filter(Path.is_dir, places), here)


def _out(default: Callable[[], Path]) -> Callable[[Callable], Callable]:
    return click.option(
        "--out",
        "-o",
        type=UserPath(file_okay=False),
        default=default,
        metavar="DIR",
        help="Of registration, records and page (default: docs/answers in a clone, or "
        "runs/answers).",
    )


_OUT = _out(_folder)
_COMPLAINTS = 10  # shown by `verify` at most

_STUDY = click.option(
    "--study",
    "study_name",
    default="",
    metavar="NAME",
    help=f"A follow-up, registered apart: {', '.join(FOLLOW_UPS)}.",
)

_of_own = partial(click.option, default=None)  # an option of a study of one's own text
_DELTA, _SEEDS = 0.01, 5

_JSON = click.option("--json", "as_json", is_flag=True, help="As one JSON object.")


@click.group(invoke_without_command=True, epilog=_EXAMPLES)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Ask what attention needs: registered questions, their trainings, their answers.

    Every question is asked in several worlds, a text with positions, a start and an optimizer.
    Without a subcommand: the list of questions.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_questions)


@command.command()
@click.option("--amend", default="", metavar="WHY", help="Why a study with trainings changes.")
@_STUDY
@_OUT
def register(amend: str, study_name: str, out: Path) -> None:
    """Write down worlds, arms, margins, seeds and expectations, before anything is trained."""
    from mlx_attn_studies.registration import register

    study, out = _study(study_name), out / study_name
    found = register(study, out, len(_book(out).records), amend)
    say(f"registered on {found.date}: {found.digest}")


@command.command(epilog=_EXAMPLES)
@click.option("--world", "worlds", multiple=True, metavar="NAME", help="Only this world.")
@click.option("--question", "questions", multiple=True, metavar="NAME", help="Only this question.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="At once.")
@click.option("--on", default="", metavar="WHERE", help="Train elsewhere, as compare does.")
@click.option(
    "--minutes",
    type=FiniteRange(min=0, min_open=True),
    metavar="N",
    help="Start no run after these (default: no limit).",
)
@click.option("--dry-run", is_flag=True, help="Say what is wanted, and train nothing.")
@_STUDY
@_of_own("--data", metavar="TEXT", help="Ask the questions of this text: anything train takes.")
@_of_own("--preset", metavar="NAME", help="Ask them at its sizes (default: those of compare).")
@_of_own("--delta", type=FiniteRange(min=0, min_open=True), metavar="NATS", help="The margin.")
@_of_own("--seeds", type=click.IntRange(2, 10_000), metavar="N", help="Of every verdict.")
@_OUT
@click.pass_context
def run(
    ctx: click.Context,
    worlds: tuple[str, ...],
    questions: tuple[str, ...],
    jobs: int,
    on: str,
    minutes: float | None,
    dry_run: bool,
    study_name: str,
    out: Path,
    **own: Any,
) -> None:
    """Train the runs that the registered study still lacks, the most important first.

    Ctrl-C loses only the trainings in progress; the same command continues. Each takes about twenty
    seconds of one processor core. With --data, --preset, --delta or --seeds the questions are asked
    of a text of your own: that study is registered, trained and written in a folder of its own.
    """
    from mlx_attn.comparison.cluster_engines import open_engine
    from mlx_attn.comparison.runner import Runner
    from mlx_attn_studies.registration import check_registered
    from mlx_attn_studies.schedule import arm_plans, wanted_trials

    if any(value is not None for value in own.values()):
        out = _register_own(ctx, out, questions, study_name, own)
    known = _book(out).records if study_name else {}
    study, out = _study(study_name, out), out / study_name
    asked = (
        [study.world(name) and name for name in worlds],
        [study.question_name(name) for name in questions],
    )
    check_registered(study, out)
    with _held(out):
        book = _book(out)

        def plans() -> Any:
            return arm_plans(study, {**known, **book.records}, *asked)

        wanted = len(wanted_trials(plans()))
        say(f"{len(book.records)} runs are there, {wanted} or more are wanted", err=True)
        if wanted and not dry_run:
            with closing(open_engine(on, jobs)) as engine:
                _train(study, plans, Runner(book, engine=engine), 60 * (minutes or 0))


def _train(study: "Study", plans: Callable[[], Any], runner: "Runner", seconds: float) -> None:
    from mlx_attn_studies.schedule import train_wanted
    from mlx_attn_studies.show import trial_line

    try:
        with signals_interrupt():
            for ended in train_wanted(study, plans, runner, seconds):
                say(trial_line(*ended), err=True)
    except KeyboardInterrupt:
        say("interrupted; finished runs are kept: the same command continues", err=True)
        click.get_current_context().exit(INTERRUPTED)


def _register_own(
    ctx: click.Context, out: Path, questions: tuple[str, ...], study_name: str, given: Any
) -> Path:
    """Register the questions about a user's own text; return the folder."""
    from click.core import ParameterSource

    from mlx_attn_studies.registration import register_own
    from mlx_attn_studies.study import own_study

    if study_name:
        raise click.UsageError("--study is one of this package's: it has its texts and seeds")
    data, preset = given["data"] or "", given["preset"] or ""
    study = own_study(data, preset, given["delta"] or _DELTA, given["seeds"] or _SEEDS, questions)
    if ctx.get_parameter_source("out") is ParameterSource.DEFAULT:
        out = Path("runs", f"answers-{Path(data or preset or 'own').stem}")
    found = register_own(study, out)
    say(f"{out}: registered on {found.date}: {found.digest}", err=True)
    say(f"what is found: mlx-attn claims page -o {quote(str(out))}", err=True)
    return out


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """No other process adds records meanwhile, which either would lose."""
    from mlx_attn.files import Locked, lock

    try:
        with lock(folder / "records", wait=False):
            yield
    except Locked as error:
        raise RunError(
            f"{folder}: another process trains for these records: wait for it"
        ) from error


@command.command()
@_OUT
def verify(out: Path) -> None:
    """Compute every number and word of the page from the records again; trains nothing."""
    from mlx_attn_studies.page import verify

    study = _study("", out)
    found = [*verify(study, out, _page_of(study))]
    for complaint in found[:_COMPLAINTS]:
        say(complaint, err=True)
    if found:
        do = "does" if len(found) == 1 else "do"
        raise RunError(f"{plural(len(found), 'thing')} of {out} {do} not agree")
    records = len(_book(out).records)
    say(f"{out}: registration, {records} records and page agree")


@command.command()
@_OUT
def page(out: Path) -> None:
    """Write the page and its pictures from the records."""
    from mlx_attn_studies.page import write_page

    study = _study("", out)
    say(write_page(study, out, _page_of(study)))


@command.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@_OUT
def check(names: tuple[str, ...], out: Path) -> None:
    """Check the statements of algebra and counting on a model trained for it; by default all."""
    from mlx_attn_studies.identities import (
        IDENTITIES,
        check,
        checked_lines,
        read_checked,
        write_checked,
    )

    checked = {name: check(name) for name in names or IDENTITIES}
    write_checked(read_checked(out) | checked, out)
    for name, one in checked.items():
        say("\n".join(checked_lines(name, one)))


@command.command()
@click.argument("question")
@_JSON
@_out(_measured)
def show(question: str, as_json: bool, out: Path) -> None:
    """Show the results for a question: every contrast in every world.

    Below each is the same contrast in the study that confirms this one, if any: quote that.
    """
    from mlx_attn_studies.findings import standing
    from mlx_attn_studies.show import finding_rows, question_lines

    first = _book(out).records
    if not first and not (out / _REGISTRATION).is_file():
        raise RunError(
            f"{out}: no study is registered and nothing is recorded; register one (mlx-attn claims "
            "register), or read docs/answers.md in a clone of the repository"
        )
    follow_ups = {asked: name for name in FOLLOW_UPS for asked in _study(name).questions}
    question = _study("", out).question_name(question, follow_ups)

    def findings_of(name: str) -> "list[Finding]":
        records = {**first, **_book(out / name).records}
        return standing(_study(name, out), records, out / name)

    name = follow_ups.get(question, "")
    found = [f for f in findings_of(name) if f.question == question]
    confirming = [other for other, base in CONFIRMS.items() if base == name]
    asked = {f.asked for f in found}
    again = [f for other in confirming[-1:] for f in findings_of(other) if f.asked in asked]
    record = {"question": question, "findings": finding_rows(found), "again": finding_rows(again)}
    emit(record, as_json, lambda: [question_lines(_study(name, out), question, found, again)])


@command.command("list")
@_JSON
def list_questions(as_json: bool = False) -> None:
    """Show the questions and the registered expectations."""
    asked = [_study(name) for name in ("", *FOLLOW_UPS)]
    questions = {name: one for study in asked for name, one in study.questions.items()}
    titles = {name: question.title for name, question in questions.items()}
    lines = [f"{name}: {title}" for name, title in titles.items()]
    emit({"questions": titles}, as_json, lambda: lines)


def _study(name: str, folder: Path | None = None) -> "Study":
    """Return the named follow-up; without a name the package's study, or the one of a folder."""
    from mlx_attn_studies.follow_ups import follow_up
    from mlx_attn_studies.registration import study_of
    from mlx_attn_studies.study import the_study

    if name:
        return follow_up(name)
    return study_of(folder) if folder else the_study()


def _page_of(study: "Study") -> "type[StudyPage]":
    """Return the class that writes its page; docs/answers.md has its own."""
    from mlx_attn_studies.answers_page import AnswersPage
    from mlx_attn_studies.page import StudyPage
    from mlx_attn_studies.study import OWN

    return StudyPage if OWN in study.worlds else AnswersPage


def _book(folder: Path) -> "RecordBook":
    from mlx_attn_studies.book import RecordBook

    return RecordBook(folder / "records")
