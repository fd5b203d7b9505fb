"""`mlx-attn demo`: two forms of attention compared over five seeds, and a page to look at them.

It is a small comparison, trained, stored and judged as `mlx-attn compare` does, and one model of
each form to talk to. Everything is kept: a demo that is started again continues where the last one
ended.
"""

import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.attention.catalog import VARIANTS, find_variant
from mlx_attn.cli.main import INTERRUPTED, signals_interrupt
from mlx_attn.cli.options import Named
from mlx_attn.cli.output import emit, note
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import lock, remove
from mlx_attn.training.config import layer_from

if TYPE_CHECKING:
    from mlx_attn.api.loaded import LoadedModel
    from mlx_attn.comparison.result import Comparison

STANDARD, DEFAULT = "standard", "shared-query-key"
QUESTIONS = {
    "shared-query-key": "Can W_query and W_key be equal?",
    "merged": "Can W_query and W_key be merged, into S = W_query W_key^T?",
    "no-query": "Can W_query go?",
    "no-out-proj": "Is out_proj needed?",
}
"""The questions of some forms."""

RECIPE: dict[str, Any] = {
    "preset": "nano",
    "n_heads": 4,
    "steps": 400,
    # Found by trying: with these rates the standard form begins to recall within 400 steps.
    "lr": 0.03,
    "muon_lr": 0.04,
    "muon_momentum": 0.9,
}
SEEDS = 5
MARGIN = 0.02  # nats per token: a smaller difference counts as none


@click.command(
    epilog="""\b
Examples:
  mlx-attn demo
  mlx-attn demo --variant no-out-proj --no-browser
"""
)
@click.option(
    "--variant",
    type=Named(VARIANTS),
    default=DEFAULT,
    show_default=True,
    metavar="NAME",
    help="What to compare with the standard form.",
)
@click.option("--overwrite", is_flag=True, help="Train again what an earlier demo left.")
@click.option("--no-browser", is_flag=True, help="Write the page, and do not open it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(
    ctx: click.Context, variant: str, overwrite: bool, no_browser: bool, as_json: bool
) -> None:
    """Compare two forms of attention, and open a page with both.

    It first says how long that takes here. Five small models of each form learn to tell stories.
    Then it shows which form is better and how far a single seed can mislead, and opens a page with
    one model of each. Ctrl-C keeps finished trainings, and the same command continues from there.
    """
    from rich.text import Text

    from mlx_attn.comparison.show import answer_of
    from mlx_attn.explore.page import write_page

    forms = [STANDARD, find_variant(variant).name]
    if forms[1] == STANDARD:
        raise ConfigError("a demo compares standard with another form: name that one")
    try:
        with signals_interrupt():
            comparison = _compared(forms, overwrite)
            pair = [_model(name, overwrite) for name in forms]
    except KeyboardInterrupt:
        note(f"stopped; 'mlx-attn demo --variant {forms[1]}' continues from here")
        ctx.exit(INTERRUPTED)
    verdict, told = comparison.verdicts[forms[1]], answer_of(comparison, forms[1])[1]
    texts = _telling(pair, verdict.mean)
    place = pair[1].run.path.with_name(f"demo-{forms[1]}.html")
    page = write_page(pair, texts, place, verdict=told)
    bits = {arm.arm: [t.bits_per_byte for t in arm.trainings] for arm in comparison.arms}
    record = {"difference": verdict.mean, "interval": verdict.interval, "word": verdict.word}
    lines = Text("\n".join(_lines(comparison, pair, page)))
    emit({"bits_per_byte": bits, **record, "page": str(page)}, as_json, lambda: [lines])
    if not no_browser:
        webbrowser.open(page.resolve().as_uri())


def _compared(forms: Sequence[str], overwrite: bool) -> "Comparison":
    """Train the forms that an earlier demo has not trained, and judge them."""
    from mlx_attn.comparison.report import conclude
    from mlx_attn.comparison.run import VerdictPlan, open_comparison
    from mlx_attn.comparison.show import Display
    from mlx_attn.runs import RUNS
    from mlx_attn.training.forecast import forecast
    from mlx_attn.training.trainer import Trainer
    from mlx_attn.ui.terminal import duration, stderr_console

    judged = {"reference": "none", "seeds": SEEDS, "delta": MARGIN, "tune": False}
    settings = {**RECIPE, "arms": forms, **judged, "question": QUESTIONS.get(forms[1], "")}
    run, directory = open_comparison(settings, "mlx-attn demo", RUNS / "demo")
    with lock(directory), Display(stderr_console(), quiet=False) as display:
        if overwrite and run.store.folder.exists():
            remove(run.store.folder)
        if missing := len(run.store.missing(VerdictPlan(run.config, run.config.arms).trials)):
            trainer = Trainer(run.config.settings(run.config.arms[0]), run.corpus)
            each = forecast(trainer).seconds
            seconds = each * (missing / run.runner.size + len(forms))
            display.message(f"about {duration(seconds)} on this machine")
        return conclude(run, directory, display)


def _model(variant: str, overwrite: bool) -> "LoadedModel":
    """Return the model of a form with seed 0, trained if an earlier demo has not trained it."""
    from mlx_attn.api.loaded import load
    from mlx_attn.api.trained import train
    from mlx_attn.runs import RUNS, find_run

    path = RUNS / f"demo-{variant}"
    settings = RECIPE | {"variant": variant, "eval_every": 0}
    with suppress(RunError, ConfigError):  # there may be no run, or another one
        run = find_run(str(path))
        is_same = settings.items() <= layer_from(run.own_settings).items()
        if is_same and run.is_finished() and not overwrite:
            return load(path)
    train(path, overwrite=True, **settings).run()
    return load(path)


def _telling(pair: "Sequence[LoadedModel]", difference: float) -> list[str]:
    """Return some whole stories, of which the first shows the sign of the difference best.

    Their beginnings alone do not tell: two models differ where a story repeats itself.
    """
    from mlx_attn.explore.manifest import EXAMPLES, example_texts, text_of

    standard, other = pair

    def shown(text: str) -> float:
        return (other.loss(text) - standard.loss(text)) * difference

    corpus, context = text_of(standard.run), standard.model.config.context_length
    texts = example_texts(standard, corpus, 8 * EXAMPLES, context)
    return sorted(texts, key=shown, reverse=True)[:EXAMPLES]


def _lines(comparison: "Comparison", pair: "Sequence[LoadedModel]", page: Path) -> Iterator[str]:
    """Yield the losses, the answer, how far one seed can mislead, and what to do next."""
    from mlx_attn.comparison.show import answer_of, notes_of, question_of

    unit = "nats per token"
    width = max(len(unit), *(len(arm.arm) for arm in comparison.arms))
    yield f"{unit:{width}}  " + "  ".join(f"seed {seed}" for seed in range(SEEDS))
    losses = {arm.arm: [training.val_loss for training in arm.trainings] for arm in comparison.arms}
    for arm, each in losses.items():
        yield f"{arm:{width}}  " + "  ".join(f"{loss:.4f}" for loss in each)
    (name,) = comparison.verdicts
    yield f"\n{name}: {VARIANTS[name].formula}"
    yield f"{question_of(comparison)} {answer_of(comparison, name)[1]}"
    yield from notes_of(comparison)
    apart = max(losses[STANDARD]) - min(losses[STANDARD])
    yield f"""
One seed each does not tell: {STANDARD} itself ends up to {apart:.3f} nats apart with \
other seeds. Only a difference that is large beside that spread is an answer.
A tiny model, {RECIPE["steps"]} steps, made-up stories, one learning rate for both: \
longer training may say something else. To ask properly: \
mlx-attn compare --variants {STANDARD},{name}

both models on a page:  {page}
every seed in a report: {page.parent / "demo" / "report.html"}
talk to one:            mlx-attn repl {pair[0].run.path}
and to the other:       /vs {pair[1].run.path}
a larger model:         mlx-attn train"""
