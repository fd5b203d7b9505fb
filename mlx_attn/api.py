"""The laboratory from Python, for scripts and notebooks: load, train, compare.

    import mlx_attn

    model = mlx_attn.load("runs/tiny-standard")
    print(model.generate("Once upon a time", temp=0.7))
    model.attention("Anna saw Hugo, and Hugo saw")  # in a notebook: the map of every head
    model.matrices(layer=0).S  # S_h of every head, (H, C, C)

    training = mlx_attn.train(preset="nano", variant="merged", steps=200)
    for event in training:
        ...
    mlx_attn.compare("standard", "merged", steps=200, seeds=3, out="runs/merged")

Nothing is printed: training and comparing yield or hand over events. Results show themselves:
`print` gives a line, rich a table, a notebook HTML with figures.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from jaxtyping import Float, Float32
from rich.text import Text

from mlx_attn import files
from mlx_attn.arrays import count_parameters
from mlx_attn.attention.analysis import ov_circuit, qk_circuit
from mlx_attn.comparison import show as comparison_show
from mlx_attn.comparison.executors import Engine, open_engine
from mlx_attn.comparison.figures import forest_figure
from mlx_attn.comparison.plan import ComparisonConfig, arms_from, reference_arm
from mlx_attn.comparison.report import question_of, write_report
from mlx_attn.comparison.result import Comparison, save_comparison
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.runner import ComparisonEvent, Runner
from mlx_attn.comparison.trial import Store
from mlx_attn.convert.model import start_from_run
from mlx_attn.errors import ConfigError, RunError, plural
from mlx_attn.machine import versions
from mlx_attn.probe.heads import Probe, probe, prompt_tokens
from mlx_attn.probe.show import draw_maps, heads_table
from mlx_attn.run_directory import RUNS, Run, check_free, find_run, held, new_run
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.documents import begin, text_loss
from mlx_attn.sampling.generate import LoadedRun, load_run
from mlx_attn.text.corpus import Corpus, prepare
from mlx_attn.training import loop
from mlx_attn.training.config import layer_from, resolve
from mlx_attn.training.events import Ended, Evaluated, Event, Stepped
from mlx_attn.training.report import draw_losses
from mlx_attn.training.show import closing_lines
from mlx_attn.training.trainer import Trainer
from mlx_attn.ui.plots import Draw, figure_for_page
from mlx_attn.ui.terminal import as_html

__all__ = ["LoadedModel", "compare", "load", "train"]


def load(run: str | Path | None = None) -> "LoadedModel":
    """A trained model with its tokenizer.

    Args:
        run: Its directory, or its name in runs/; None is the latest there.

    Raises:
        RunError: There is no such run, or it is damaged.
    """
    found = load_run(None if run is None else str(run))
    return LoadedModel(found.run, found.model, found.tokenizer)


@dataclass(frozen=True, slots=True)
class LoadedModel(LoadedRun):
    """A trained model: what it writes, what it expects, where it looks, what its matrices are."""

    def generate(
        self, prompt: str = "", max_tokens: int = 200, *, stop: Sequence[str] = (), **sampler: Any
    ) -> str:
        """The continuation of a prompt, without it.

        Args:
            prompt: The text to continue.
            max_tokens: The most new tokens.
            stop: Texts before which it ends.
            sampler: Settings of `SamplerConfig`: temp, top_p, seed and the rest.

        Raises:
            ConfigError: A setting cannot work, or a character is unknown to the tokenizer.
        """
        steps = self.stream(prompt, SamplerConfig(**sampler), max_tokens, stop)
        return "".join(step.text for step in steps)

    def generate_batch(
        self,
        prompt: str = "",
        count: int = 8,
        max_tokens: int = 200,
        *,
        stop: Sequence[str] = (),
        **sampler: Any,
    ) -> list[str]:
        """Several continuations of a prompt, decoded as one batch.

        Number k is what `generate` returns with the seed `seed + k`, up to rounding. Arguments and
        errors are those of `generate`.
        """
        texts = [""] * count
        steps = self.stream_batch(prompt, count, SamplerConfig(**sampler), max_tokens, stop)
        for k, step in steps:
            texts[k] += step.text
        return texts

    def logits(self, text: str) -> Float32[np.ndarray, "T V"]:
        """Return what the model expects after each token of a text, read as a whole document."""
        tokens, own = self._tokens(text)
        return np.array(self.model(mx.array(tokens)[None])[0, -own:].astype(mx.float32))

    def loss(self, text: str) -> float:
        """Return nats per token of a text: the mean of -ln p(token | the tokens before it).

        The text is read after the document's start, if the run's text has one; then its first token
        counts too, and otherwise those from the second on.
        """
        tokens, own = self._tokens(text)
        if len(tokens) < 2:
            raise ConfigError("a loss needs a text of at least two tokens: give a longer one")
        return text_loss(self.model, tokens, own)

    def attention(self, text: str) -> "AttentionMaps":
        """What every head looks at while the model reads a text."""
        context, start = self.model.config.context_length, self.start_tokens
        tokens = prompt_tokens(text, self.tokenizer, context, start)
        pieces = [self.tokenizer.token_bytes(token) for token in tokens[0].tolist()]
        words = [piece.decode("utf-8", "replace") for piece in pieces]
        return AttentionMaps(probe(self.model, tokens), words)

    def matrices(self, layer: int) -> "Matrices":
        """The matrices of a layer's heads.

        Raises:
            ConfigError: There is no such layer, or its map is not linear, with the reason.
        """
        blocks = self.model.trf_blocks
        if not 0 <= layer < len(blocks):
            raise ConfigError(f"layer={layer}: this model's layers are 0 to {len(blocks) - 1}")
        attention = blocks[layer].att
        return Matrices(qk_circuit(attention).products, ov_circuit(attention).products)

    def _tokens(self, text: str) -> tuple[list[int], int]:
        """Return the document's start with a text's tokens, and how many of them are the text's."""
        tokens, context = self.tokenizer.encode(text).tolist(), self.model.config.context_length
        if not 0 < len(tokens) <= context:
            raise ConfigError(
                f"the text has {len(tokens)} tokens, and this model reads 1 to {context} at once: "
                "give another text"
            )
        return begin(tokens, self.start_tokens, context), len(tokens)

    def __repr__(self) -> str:
        config = self.model.config
        variant = self.run.settings.get("variant", "")
        sizes = [plural(config.n_layers, "layer"), plural(config.n_heads, "head")]
        sizes += [f"width {config.emb_dim}", f"{count_parameters(self.model):,} parameters"]
        return f"LoadedModel({self.name}: {variant}, {', '.join(sizes)})"


@dataclass(frozen=True, slots=True)
class Matrices:
    """Of the heads of one layer: scores are scale * x_i S_h x_j^T, outputs sum_h softmax_h x VO_h.

    Attributes:
        S: W_query_h W_key_h^T.
        VO: W_value_h O_h.
    """

    S: Float[np.ndarray, "H C C"]
    VO: Float[np.ndarray, "H C C"]


@dataclass(frozen=True, slots=True)
class AttentionMaps:
    """The attention of every head on one text.

    Attributes:
        found: Statistics and spectra of the heads; see `mlx_attn.probe.heads`.
        tokens: The tokens as text.
    """

    found: Probe
    tokens: list[str]

    @property
    def weights(self) -> Float32[np.ndarray, "L H T T"]:
        """[layer, head, i, j]: how much of token j token i takes in; each row adds up to 1."""
        return self.found.maps[:, 0]

    def __rich__(self) -> Any:
        return heads_table(self.found)

    def _repr_html_(self) -> str:
        return _figure(partial(draw_maps, self.found)) + as_html(self.__rich__())


@dataclass(slots=True)
class Training:
    """A training: iterating it trains, and yields what happens; iterating it again goes on.

    Attributes:
        trainer: The model and the settings.
        corpus: The prepared text.
        out: Directory of the run; None keeps nothing.
        overwrite: Whether a run that is there is replaced.
        facts: What the run's record holds beside its settings.
        events: Those that have happened.
    """

    trainer: Trainer
    corpus: Corpus
    out: Path | None = None
    overwrite: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def __iter__(self) -> Iterator[Event]:
        with self._kept():
            recorder = loop.RunRecorder(self.trainer, self.corpus.tokenizer)
            for event in loop.train(self.trainer):
                recorder(event)
                self.events.append(event)
                yield event

    def run(self) -> "Training":
        """Train to the end."""
        for _ in self:
            pass
        return self

    @property
    def losses(self) -> Mapping[int, float]:
        """Validation losses in nats per token, by step."""
        evaluated = (event for event in self.events if isinstance(event, Evaluated))
        return {event.step: event.evaluation.val_loss for event in evaluated}

    @property
    def model(self) -> LoadedModel:
        """The model: with its best weights if the training is kept in a directory, else its last.

        Raises:
            RunError: The training has not begun.
        """
        if not self.events:
            raise RunError("this training has not begun: iterate over it, or call run()")
        if self.trainer.run and self.losses:
            return load(self.trainer.run.path)
        self.trainer.model.eval()
        run = Run(Path(self.trainer.settings.variant), self._record())
        return LoadedModel(run, self.trainer.model, self.corpus.tokenizer)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Hold the run directory, which the first time is made."""
        if self.out is None:
            yield
        elif self.trainer.run:
            with held(self.trainer.run):
                yield
        else:
            record, tokenizer = self._record(), self.corpus.tokenizer
            with new_run(self.out, record, self.overwrite, tokenizer) as self.trainer.run:
                yield

    def _record(self) -> dict[str, Any]:
        return self.trainer.settings.record(self.trainer.model.config, **self.facts)

    def __repr__(self) -> str:
        last = self.events[-1] if self.events else None
        if isinstance(last, Ended):
            return "\n".join(closing_lines(last))
        return f"Training({self.trainer.settings.variant}, step {self.trainer.progress.step})"

    def _repr_html_(self) -> str:
        steps = {event.step: event.loss for event in self.events if isinstance(event, Stepped)}
        figure = _figure(partial(draw_losses, steps, self.losses)) if steps else ""
        return figure + as_html(Text(repr(self)))


def train(
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    init_from: str | Path | None = None,
    **settings: Any,
) -> Training:
    """A training to iterate over, one event at a time.

    Args:
        out: Directory of the run, for every command to use; None keeps nothing.
        overwrite: Replace a run that is there.
        init_from: A run whose weights, text and settings it starts from.
        settings: As on the command line, with underscores: preset, variant, data, steps, lr, seed.

    Raises:
        ConfigError: A setting is unknown or cannot work.
        RunError: The directory is taken.
    """
    start = find_run(str(init_from)) if init_from else None
    chosen = resolve(layer_from(start.settings) if start else {}, settings)
    place = None if out is None else files.user_path(out)
    if place is not None:
        check_free(place, overwrite)
    corpus = prepare(chosen.text.data, chosen.text.tokenizer, chosen.text.vocab_size)
    trainer = Trainer(chosen, corpus)
    facts = {"corpus": corpus.name, "digest": corpus.digest, "versions": versions()}
    if start:
        start_from_run(trainer, start, corpus)
        facts |= {"init_from": str(init_from)}
    return Training(trainer, corpus, place, overwrite, facts)


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """A finished comparison.

    Attributes:
        comparison: Every number of it.
        directory: Where its trainings and its report are.
    """

    comparison: Comparison
    directory: Path

    @property
    def answers(self) -> dict[str, tuple[str, list[str]]]:
        """The verdict of every arm and the sentences that state it."""
        judged = comparison_show.judged(self.comparison)
        return {arm: comparison_show.answer_of(self.comparison, arm) for arm in judged}

    def __repr__(self) -> str:
        lines = [f"{word}: {' '.join(sentences)}" for word, sentences in self.answers.values()]
        return "\n".join([question_of(self.comparison), *lines])

    def __rich__(self) -> Any:
        return comparison_show.verdict_tables(self.comparison)

    def _repr_html_(self) -> str:
        figure = _figure(partial(forest_figure, self.comparison.budgets[0], self.comparison))
        return as_html(Text(repr(self))) + figure + as_html(self.__rich__())


def compare(
    *arms: str,
    out: str | Path | None = None,
    seeds: int = 5,
    delta: float = 0.01,
    budgets: Sequence[str] = ("steps",),
    tune: bool = True,
    jobs: int = 0,
    on: str = "",
    on_event: Callable[[ComparisonEvent], None] | None = None,
    **shared: Any,
) -> ComparisonResult:
    """Say which form of attention is better, and how sure that is.

    Args:
        arms: Two or more, the control first: "standard", "merged", "one head: standard, n_heads=1".
        out: Directory of the trainings; a second call with it trains only what is missing.
        seeds: Trainings of each arm that the verdict rests on.
        delta: Differences smaller than this, in nats per token, count as none.
        budgets: What is held equal: "steps", "seconds", "params".
        tune: Whether every arm gets its own learning rate, on seeds that no verdict uses.
        jobs: Processes at once; 0 is one for every core. In a script, call it under
            `if __name__ == "__main__":`, because processes are spawned.
        on: Other machines to train on: "dask://HOST:PORT", "ssh:HOST,HOST" or "slurm".
        on_event: Told what happens, as it happens.
        shared: Settings that all arms share: preset, steps, data.

    Raises:
        ConfigError: A setting or an arm cannot work.
        RunError: A training failed.
    """
    plan = _plan(arms, shared, seeds=seeds, delta=delta, budgets=tuple(budgets))
    plan = plan if tune else replace(plan, scales=(1.0,))
    directory = files.user_path(out) if out else RUNS / plan.name
    plan = replace(plan, name=directory.name)
    with files.shared(directory), closing(open_engine(on, jobs)) as engine:
        comparison = _compare(plan, directory, engine, on_event)
        save_comparison(comparison, directory)
        write_report(comparison, directory)
    return ComparisonResult(comparison, directory)


def _plan(arms: Sequence[str], shared: Mapping[str, Any], **options: Any) -> ComparisonConfig:
    """What is compared, under a name made of the arms'."""
    chosen = arms_from(arms)
    return ComparisonConfig(
        arms=chosen,
        reference=reference_arm(chosen),
        shared=shared,
        name="compare-" + "-".join(arm.name for arm in chosen)[:60],
        command="mlx_attn.compare",
        **options,
    )


def _compare(
    plan: ComparisonConfig,
    directory: Path,
    engine: Engine,
    on_event: Callable[[ComparisonEvent], None] | None,
) -> Comparison:
    """Train what is missing, telling what happens; the last event is the comparison."""
    runner = Runner(Store(directory / "trainings"), engine=engine)
    event = None
    for event in ComparisonRun(plan, runner, versions()):
        if on_event:
            on_event(event)
    assert isinstance(event, Comparison)
    return event


def _figure(draw: Draw) -> str:
    """A figure as SVG."""
    return str(figure_for_page(draw))
