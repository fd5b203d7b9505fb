"""What the finished trainings of a comparison say: the result, budget by budget."""

from collections.abc import Mapping, Sequence
from statistics import stdev
from typing import Any

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.lab.compare.cell import Cell, floor_of
from mlx_attn.lab.compare.layout import Layout
from mlx_attn.lab.compare.result import ArmResult, BudgetResult, Comparison, Noise, Training, Tuning
from mlx_attn.lab.compare.store import Diverged, Store
from mlx_attn.lab.compare.tuning import Choice
from mlx_attn.lab.statistics import judge
from mlx_attn.model import model_cost
from mlx_attn.text.corpus import Corpus

FLOAT_BYTES = 4


def conclude(
    layout: Layout,
    store: Store,
    corpus: Corpus,
    tunings: Sequence[Tuning],
    seeds: Sequence[int],
    versions: Mapping[str, Any],
) -> Comparison:
    """The result of a comparison whose trainings are all finished.

    Raises:
        RunError: The control diverged.
    """
    protocol = layout.protocol
    budgets = tuple(_budget(budget, layout, store, seeds) for budget in protocol.budgets)
    everything = {cell.digest: cell for cell in layout.all(seeds)}.values()
    outcomes = [store[cell] for cell in everything]
    return Comparison(
        name=protocol.name,
        question=protocol.question,
        command=protocol.command,
        control=layout.control.arm.name,
        settings=_shared(layout),
        delta=protocol.delta,
        confidence=protocol.confidence,
        text={"name": corpus.name, "digest": corpus.digest, "floor": floor_of(corpus)},
        versions=dict(versions),
        noise=_noise(layout, store, seeds) if protocol.noise else None,
        tunings=tuple(tunings),
        budgets=budgets,
        seconds=sum(o.seconds for o in outcomes if isinstance(o, Training)),
    )


def _shared(layout: Layout) -> dict[str, Any]:
    """All settings of the control but what sets arms apart, for people."""
    settings = layout.protocol.settings(layout.control.arm)
    own = {key for choice in layout.choices for key in choice.arm.settings}
    flat = {**settings.model, **settings.training.as_dict(), "data": settings.text.data}
    return {"preset": settings.preset, **{k: v for k, v in flat.items() if k not in own}}


def _budget(budget: str, layout: Layout, store: Store, seeds: Sequence[int]) -> BudgetResult:
    arms: list[ArmResult] = []
    refused: dict[str, str] = {}
    for choice in layout.choices:
        try:
            arms.append(_arm(budget, choice, layout, store, seeds))
        except ConfigError as error:
            refused[choice.arm.name] = str(error)
    if layout.control.arm.name in refused:
        raise RunError(
            f"the control diverged, so there is nothing to compare with: "
            f"{refused[layout.control.arm.name]}"
        )
    differences = {arm.arm: _differences(arm, arms[0]) for arm in arms[1:]}
    protocol = layout.protocol
    verdicts = judge(differences, protocol.delta, protocol.confidence) if differences else {}
    return BudgetResult(budget=budget, arms=tuple(arms), refused=refused, verdicts=verdicts)


def _arm(
    budget: str, choice: Choice, layout: Layout, store: Store, seeds: Sequence[int]
) -> ArmResult:
    """An arm's trainings and its size.

    Raises:
        ConfigError: It cannot be had under this budget, or a training diverged.
    """
    changes = {**choice.changes, **layout.changes(budget, choice)}
    config = layout.protocol.settings(choice.arm, changes).model_config(layout.vocab_size)
    cost = model_cost(config)
    return ArmResult(
        arm=choice.arm.name,
        settings={**choice.arm.settings, **changes},
        lr_scale=choice.lr_scale,
        params=cost.parameters,
        multiply_adds=cost.multiply_adds,
        cache_bytes_per_token=FLOAT_BYTES * cost.cache_floats,
        trainings=_finished(layout.trainings(budget, choice, seeds), store),
    )


def _finished(cells: Sequence[Cell], store: Store) -> tuple[Training, ...]:
    trainings: list[Training] = []
    for cell in cells:
        outcome = store[cell]
        if isinstance(outcome, Diverged):
            raise ConfigError(f"with seed {cell.seed} it diverged: {outcome.message}")
        trainings.append(outcome)
    return tuple(trainings)


def _differences(arm: ArmResult, control: ArmResult) -> list[float]:
    """Loss of the arm less that of the control, seed by seed."""
    pairs = zip(arm.trainings, control.trainings, strict=True)
    return [one.val_loss - other.val_loss for one, other in pairs]


def _noise(layout: Layout, store: Store, seeds: Sequence[int]) -> Noise:
    """The control against itself.

    Raises:
        RunError: It diverged.
    """
    try:
        once = _finished(layout.trainings("steps", layout.control, seeds), store)
        again = _finished(layout.again(seeds), store)
        repeated = _finished([layout.repeat(seeds)], store)
    except ConfigError as error:
        raise RunError(f"the control against itself: {error}") from error
    losses = [training.val_loss for training in once]
    differences = [a.val_loss - b.val_loss for a, b in zip(again, once, strict=True)]
    name, protocol = layout.control.arm.name, layout.protocol
    return Noise(
        repeat_difference=abs(repeated[0].val_loss - losses[0]),
        seed_spread=stdev(losses) if len(losses) > 1 else 0.0,
        verdict=judge({name: differences}, protocol.delta, protocol.confidence)[name],
    )
