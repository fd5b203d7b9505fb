"""`mlx-attn convert`: a trained model in another form of attention, and the error it makes."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlx_attn.cli.options import UserPath, takes_plugins
from mlx_attn.cli.output import emit, note
from mlx_attn.cli.sample import run_argument

if TYPE_CHECKING:
    from mlx_attn.run_directory import Run
    from mlx_attn.text.corpus import Corpus


def ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of 8, or 1,2,4, or 1..128, or 8..128:8, or several with commas."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:\.\.(\d{1,4})(?::([1-9]\d*))?)?", part.strip())
        if not match:
            raise click.BadParameter(f"'{part[:40]}' is no rank: write 8, or 1,2,4, or 1..128")
        found += range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
    if not found or min(found) < 1:
        raise click.BadParameter(f"'{text}' has no rank of at least 1")
    return tuple(found)


_EXAMPLES = """\b
Examples:
  mlx-attn convert tiny-standard --to merged
  mlx-attn convert tiny-merged --to separate --rank 16
  mlx-attn convert tiny-standard --to separate --rank 1..32
"""


@takes_plugins
@click.command(epilog=_EXAMPLES)
@run_argument
@click.option("--to", metavar="FORM", help="The form to convert to; --list shows them.")
@click.option("--rank", "ranks", type=ranks, help="One rank, or several for a curve: 1..128.")
@click.option("--fold-norm", is_flag=True, help="Fold the norm's gain and shift into the maps.")
@click.option("--out", "-o", type=UserPath(), help="Where the result goes.")
@click.option("--overwrite", is_flag=True, help="Replace an existing run directory.")
@click.option("--list", "as_list", is_flag=True, help="Show the conversions and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    run: str | None,
    to: str | None,
    ranks: tuple[int, ...] | None,
    fold_norm: bool,
    out: Path | None,
    overwrite: bool,
    as_list: bool,
    as_json: bool,
) -> None:
    """Write a trained model in another form of attention, and print the differences.

    RUN is a directory or a name in runs/; without it, the latest finished one. The result is a
    new run that trains on, samples and converts further. With several ranks nothing is
    converted for good: the loss at each rank is measured, printed and drawn.
    """
    from mlx_attn.convert.conversions import CONVERSIONS, find_conversion
    from mlx_attn.runs import find_run

    if as_list:
        from mlx_attn.convert.show import conversions_table

        keys = ("name", "identity", "exact", "ranked")
        rows = [{key: getattr(row, key) for key in keys} for row in CONVERSIONS.values()]
        emit({"conversions": rows}, as_json, lambda: [conversions_table()])
        return
    ranks = ranks or ()
    is_curve = len(ranks) > 1
    if not to and not is_curve:
        raise click.UsageError("say what to convert to: --to FORM (--list shows the forms)")
    if is_curve and (fold_norm or overwrite):
        raise click.UsageError("--fold-norm and --overwrite belong to a single conversion")
    form, source = find_conversion(to or "separate").name, find_run(run)
    if is_curve:
        _measure_ranks(source, form, ranks, out or source.path, as_json)
    else:
        rank = ranks[0] if ranks else 0
        _convert(source, form, out, as_json, rank=rank, fold_norm=fold_norm, overwrite=overwrite)


def _convert(
    source: "Run", form: str, out: Path | None, as_json: bool, *, rank: int, **options: bool
) -> None:
    from mlx_attn.convert import measure, show
    from mlx_attn.runs import free_name

    place = out or free_name(source.path.parent, f"{source.name}-{form}")
    new, outcome = measure.convert_run(source, form, place, _corpus(source), rank=rank, **options)
    facts = {"run": new.path, "from": source.path, "to": form, "rank": rank}
    emit(facts | outcome.record(), as_json, lambda: [new.path, show.outcome_table(outcome)])
    if not outcome.is_same_function:
        error = max(outcome.score_error, outcome.output_error)
        note(
            f"{form}: not the same function: the heads' matrices differ by {error:.0%}, and the "
            f"loss by {outcome.loss_change:+.3f}; mlx-attn train --resume {new.path} trains it on"
        )


def _measure_ranks(
    run: "Run", to: str, ranks: tuple[int, ...], folder: Path, as_json: bool
) -> None:
    from mlx_attn.convert import measure, show
    from mlx_attn.files import make_directory

    def progress(rank: int, done: int) -> None:
        note(f"rank {rank}: {done} of {len(ranks)}")

    make_directory(folder)  # before hours of measuring
    curve = measure.measure_ranks(run, to, ranks, _corpus(run), progress)
    files = show.save_rank_curve(curve, folder)
    facts = {"run": run.path, "figures": files}
    emit(facts | curve.record(), as_json, lambda: [show.rank_table(curve), *files])


def _corpus(run: "Run") -> "Corpus":
    """Return the text that a run was trained on, fetched or generated again where it is missing."""
    from mlx_attn.training.config import settings_from

    return settings_from(run.own_settings, {}).corpus()
