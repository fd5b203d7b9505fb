"""The study's questions on a user's own text, with the user's sizes, margin and seeds.

Such a study has one world, and is registered in a folder of its own before it is trained. The
registration holds the complete study, and `registration.study_of` reads it from there.
"""

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from mlx_attn.answers.book import RecordBook
from mlx_attn.answers.registration import Registration, register, study_of
from mlx_attn.answers.study import OWN, STANDARD, Contrast, Question, Study, World, the_study
from mlx_attn.attention.config import MAPS
from mlx_attn.comparison.plan import DEFAULTS
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.text.downloads import data_directory
from mlx_attn.text.sources import read_source
from mlx_attn.training.config import Settings, resolve

TEST = (
    "p-values are those of the test moderated-t (mlx_attn.comparison.t_tests): the largest over "
    "five families of distributions, of t with a standard error that contains the spread of "
    "tuning's runs and of other arms, and the choice of the learning rates: what it costs when "
    "tuning seeds are drawn again, and what a parabola says a finer grid would gain."
)
"""The test that a study of a user's own text registers, in place of the first study's test."""

_FIRST_SEED = 100
_SET_BY_THE_STUDY = {
    *("seed", "init_seed", "eval_every", "save_every", "log_every", "track", "patience"),
    *("epochs", "minutes"),
}


def own_study(
    data: str, preset: str, delta: float, seeds: int, questions: Collection[str] = ()
) -> Study:
    """Return a study that asks all or some of the questions of one text.

    Args:
        data: A value of `--data`; "" uses the preset's text.
        preset: Name of the preset; "" uses the defaults of `compare`.
        delta: The margin, in nats per token.
        seeds: Number of seeds of every verdict.
        questions: Names of the questions to ask; empty asks all.

    Raises:
        ConfigError: The preset is not bounded by steps, has one head, or changes the attention.
    """
    first = the_study()
    for name in questions:
        first.question(name)
    layer: dict[str, Any] = {"preset": preset} if preset else {**DEFAULTS}
    settings = resolve(layer, {"data": data} if data else {})
    _check(settings, preset)
    world = _world(settings, first, delta)
    asked = {
        name: Question(title=question.title, contrasts=contrasts)
        for name, question in first.questions.items()
        if (not questions or name in questions)
        and (contrasts := _contrasts(question, world.settings["position"]))
    }
    named = {arm for q in asked.values() for contrast in q.contrasts for arm in contrast.arms}
    arms = {n: a for n, a in first.arms.items() if n in named | {first.shorter}}
    order = tuple(name for name in first.protocol.first if name in arms)
    numbers = tuple(range(_FIRST_SEED, _FIRST_SEED + seeds))
    analysis = tuple(
        TEST if line.startswith("p-values") else line for line in first.protocol.analysis
    )
    protocol = replace(first.protocol, verdict_seeds=numbers, first=order, analysis=analysis)
    return Study(protocol=protocol, worlds={OWN: world}, arms=arms, questions=asked)


def register_own(study: Study, folder: Path) -> Registration:
    """Register the study in its folder; a study that has trainings keeps its registered test.

    Raises:
        RunError: The folder has trainings of another study.
    """
    records = len(RecordBook(folder / "records").records)
    if records:
        before = study_of(folder).protocol
        study = replace(study, protocol=replace(study.protocol, analysis=before.analysis))
    if records and study_of(folder).digest != study.digest:
        raise RunError(
            f"{folder}: another study is registered there, with {records} trainings: give this one "
            "a folder of its own with -o, or the settings of that one"
        )
    return register(study, folder, records)


def _check(settings: Settings, preset: str) -> None:
    if not settings.training.steps:
        raise ConfigError(f"preset {preset} is not bounded by steps: name one that is, as tiny")
    if settings.variant != STANDARD:
        raise ConfigError(
            f"preset {preset} has the attention {settings.variant}, and the questions are about "
            "changes of the standard form: name another, as tiny"
        )
    if settings.model.get("n_heads", 0) == 1:
        raise ConfigError(f"preset {preset} has one head, and the questions are about several")


def _world(settings: Settings, first: Study, delta: float) -> World:
    """Return the world of a text; branches start as in the book, as the statements assume."""
    flat = {**settings.model, **settings.training.as_dict(), **asdict(settings.text)}
    flat = {key: value for key, value in flat.items() if key not in {*_SET_BY_THE_STUDY, *MAPS}}
    flat |= {"start": "book", "position": settings.model_config(1).position}
    same_positions = [
        w for w in first.worlds.values() if w.settings["position"] == flat["position"]
    ]
    world = World(
        summary=f"{flat['data']}; the settings of preset {settings.preset}",
        text="",
        settings=flat,
        margin=delta,
        reason="given with --delta",
        # Only the positions decide which reference arms compute the same function.
        same=same_positions[0].same if same_positions else {},
    )
    return replace(world, text=read_source(flat["data"], data_directory()).digest)


def _contrasts(question: Question, position: str) -> tuple[Contrast, ...]:
    """Return the contrasts of a question that also hold for another text.

    With RoPE, forms that compute one function elsewhere compute two. Repetitions from jittered
    starts are only about the first study's own trainings.
    """
    return tuple(
        replace(contrast, worlds=())
        for contrast in question.contrasts
        if not contrast.repeats and (not contrast.worlds or (contrast.null and position != "rope"))
    )
