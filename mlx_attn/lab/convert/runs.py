"""A run directory converted into another, which every command reads like one that was trained."""

from collections.abc import Callable, Sequence
from pathlib import Path

from mlx_attn.errors import RunError
from mlx_attn.lab.convert.measure import Outcome, compare, figures
from mlx_attn.lab.convert.model import convert
from mlx_attn.lab.convert.norms import fold_norms
from mlx_attn.lab.convert.ranks import RankCurve, rank_points
from mlx_attn.lab.convert.table import find_conversion
from mlx_attn.lab.convert.windows import some_windows
from mlx_attn.model import GPT
from mlx_attn.runs import Run, check_free, create_run
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.evaluation import Evaluator
from mlx_attn.training.settings import settings_from, variant_name
from mlx_attn.training.trainer import Trainer
from mlx_attn.trees import named_arrays

FITTED_TOKENS = 8192
"""Tokens of the training text that a conversion is fitted to, where one is, at most."""


def convert_run(
    run: Run,
    to: str,
    out: Path,
    corpus: Corpus,
    *,
    rank: int = 0,
    fold_norm: bool = False,
    overwrite: bool = False,
) -> tuple[Run, Outcome]:
    """Convert a run's best weights and write them as a new run.

    The new run keeps the settings of training and text. Its checkpoint is at step 0 with a fresh
    optimizer, so that `train --resume` trains the converted model by the same recipe.

    Args:
        run: What to convert.
        to: A name in `CONVERSIONS`.
        out: The new directory.
        corpus: The text that the run was trained on.
        rank: See `convert`.
        fold_norm: See `convert`.
        overwrite: Whether an existing run directory may be replaced.

    Raises:
        ConfigError: The conversion does not apply to this model.
        RunError: The text is another one, or files cannot be read or written.
    """
    check_corpus(run, corpus)
    check_free(out, overwrite)
    model = run.load_model()
    T = model.config.context_length
    tokens = some_windows(corpus.train, T, FITTED_TOKENS)
    converted = convert(model, to, rank=rank, fold_norm=fold_norm, tokens=tokens)
    folded = fold_norms(model) if fold_norm else None
    outcome = compare(model, converted, Evaluator(corpus.val, T), folded)
    facts = {"from": str(run.path), "to": to, "rank": rank, "fold_norm": fold_norm}
    config = converted.config.as_dict()
    changed = {"model": config, "variant": variant_name(config), "converted": facts}
    new = create_run(out, {**run.settings, **changed}, overwrite)
    run.load_tokenizer().save(new.path)
    new.save_model(converted)
    _save_start(new, converted, corpus, outcome)
    return new, outcome


def measure_ranks(
    run: Run,
    to: str,
    ranks: Sequence[int],
    corpus: Corpus,
    done: Callable[[int, int], None] = lambda rank, count: None,
) -> RankCurve:
    """The loss of a run's best weights, cut to each of several ranks.

    Args:
        run: What to measure; it is left as it is.
        to: A conversion that takes a rank.
        ranks: In the order wanted.
        corpus: The text that the run was trained on.
        done: Called after each rank, with the rank and how many are done.

    Raises:
        ConfigError: The conversion does not apply, or a rank is out of reach.
        RunError: The text is another one, or files cannot be read.
    """
    check_corpus(run, corpus)
    conversion, model = find_conversion(to), run.load_model()
    for rank in ranks:
        conversion.changed(model.config, rank)
    evaluator = Evaluator(corpus.val, model.config.context_length)
    original, points = figures(model, evaluator), []
    for point in rank_points(model, conversion.name, ranks, evaluator):
        points.append(point)
        done(point.rank, len(points))
    return RankCurve(conversion.name, original, tuple(points))


def check_corpus(run: Run, corpus: Corpus) -> None:
    """Refuse a text that the run was not trained on.

    Raises:
        RunError: It is another one.
    """
    if run.settings.get("digest") not in (None, corpus.digest):
        raise RunError(f"{run.path} was trained on another text than {corpus.name} holds now")


def _save_start(run: Run, model: GPT, corpus: Corpus, outcome: Outcome) -> None:
    """Write a checkpoint at step 0, from which training goes on."""
    trainer = Trainer(settings_from(run.settings, {}), corpus)
    trainer.model.load_weights(list(named_arrays(model).items()))
    progress, now = trainer.progress, outcome.after
    progress.best_loss, progress.best_bits_per_byte = now.val_loss, now.bits_per_byte
    progress.best_above_floor, progress.best_accuracy = now.above_floor, now.accuracy
    trainer.run = run
    trainer.save()
