"""`mlx-attn train --replicas N`: several seeds at once, each in a run directory of its own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlx_attn.cli.manner import Manner, run_orderly
from mlx_attn.cli.preparation import (
    Place,
    check_same_text,
    prepared_text,
    resumed_settings,
    take_over,
)
from mlx_attn.errors import ConfigError
from mlx_attn.training.settings import Settings

if TYPE_CHECKING:
    from mlx_attn.runs import Run
    from mlx_attn.show.progress import Display
    from mlx_attn.text.corpus import Corpus
    from mlx_attn.training.ranks import Ranks
    from mlx_attn.training.replicas import Replica


def alone(ranks: "Ranks") -> None:
    """Refuse several seeds in several processes."""
    if ranks.size > 1:
        raise ConfigError(
            f"{ranks.size} ranks train one model: start several seeds without mlx.launch, or one "
            "seed with it"
        )


def begin_several(
    settings: Settings, count: int, place: Place, start: "Run | None", manner: Manner
) -> None:
    """New trainings of the settings' seed and those after it, side by side in one directory."""
    from mlx_attn.runs import seed_place
    from mlx_attn.training.replicas import replicas_of, with_seeds

    recipes = with_seeds(settings, count)
    places = [place.inside(seed_place(place.path, each.training.seed)) for each in recipes]
    for each in places:
        each.check()
    display = manner.display()
    corpus = prepared_text(settings, display)
    together = not manner.dry_run and _together(manner.together, recipes, corpus)
    replicas = replicas_of(recipes, corpus)
    if start:
        for replica in replicas:
            take_over(start, corpus, replica)
    _train(replicas, corpus, places, together, display, manner)


def go_on_with_several(runs: Sequence["Run"], changes: dict[str, Any], manner: Manner) -> None:
    """Trainings that were begun at once, from where each of them stopped."""
    from mlx_attn.training.replicas import replicas_of

    recipes = [resumed_settings(run, changes) for run in runs]
    display = manner.display()
    corpus = prepared_text(recipes[0], display)
    replicas = replicas_of(recipes, corpus)
    for replica, run in zip(replicas, runs, strict=True):
        check_same_text(run, corpus)
        replica.resume(run)
    # As it was decided at the beginning, so that the numbers are the same bits.
    before = "on" if runs[0].settings.get("together") else "off"
    together = (manner.together or before) == "on"
    _train(replicas, corpus, [Place(run.path) for run in runs], together, display, manner)


def _together(wanted: str | None, recipes: Sequence[Settings], corpus: "Corpus") -> bool:
    from mlx_attn.training.replicas import pays_off

    return wanted == "on" or (wanted != "off" and pays_off(recipes, corpus))


def _train(
    replicas: Sequence["Replica"],
    corpus: "Corpus",
    places: Sequence[Place],
    together: bool,
    display: "Display",
    manner: Manner,
) -> None:
    from mlx_attn.show.plan import replica_facts, replica_rows
    from mlx_attn.show.replicas import follow_replicas, replica_display, what_is_saved
    from mlx_attn.training.replicas import Together, in_turn

    how = None if manner.dry_run else together
    manner.show_plan(replica_rows(replicas, corpus, how), replica_facts(replicas, corpus))
    if manner.dry_run:
        return
    for replica, place in zip(replicas, places, strict=True):
        replica.run = place.record(replica, corpus, together=together)
    shown = replica_display(display, [replica.config.seed for replica in replicas])
    launch = Together() if together else in_turn
    run_orderly(
        lambda asked: follow_replicas(replicas, launch, corpus.tokenizer, shown, asked),
        lambda: what_is_saved(replicas),
        display,
    )
