"""What a conversion changed: logits, validation loss, weights, size and cache."""

from dataclasses import asdict, dataclass
from typing import Any

from mlx_attn.attention.algebra import relative_error
from mlx_attn.lab.convert.layer import Layer, read_layer
from mlx_attn.lab.convert.logits import LogitDifferences, compare_logits
from mlx_attn.lab.convert.readers import read_output, read_scores
from mlx_attn.model import GPT, model_cost
from mlx_attn.training.evaluation import Evaluator
from mlx_attn.training.settings import variant_name


@dataclass(frozen=True, slots=True)
class Figures:
    """A model in numbers.

    Attributes:
        variant: The name of its attention's three choices.
        val_loss: Nats per token over the whole validation text.
        bits_per_byte: The same per byte of text; None for a task.
        above_floor: Bits per byte above the text's exact entropy, where that is known; for a task,
            nats per scored token above its floor.
        accuracy: Share of a task's answers that are right; None for a text.
        params: Trained numbers.
        cache_bytes_per_token: Bytes remembered for each token when decoding.
    """

    variant: str
    val_loss: float
    bits_per_byte: float | None
    above_floor: float | None
    accuracy: float | None
    params: int
    cache_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A model before and after a conversion.

    Attributes:
        before: The model that was converted.
        after: What it became.
        logits: How far apart the two are in what they compute, and how much of it is rounding.
        score_error: |S - S'| / |S| in the Frobenius norm, of the worst layer; its bias is in it.
        output_error: The same of VO.
    """

    before: Figures
    after: Figures
    logits: LogitDifferences
    score_error: float
    output_error: float

    @property
    def loss_change(self) -> float:
        """Validation loss after less before, in nats per token."""
        return self.after.val_loss - self.before.val_loss

    @property
    def weights_removed(self) -> int:
        """How many trained numbers fewer there are; negative where there are more."""
        return self.before.params - self.after.params

    def record(self) -> dict[str, Any]:
        """All of it as one JSON object."""
        derived = {"loss_change": self.loss_change, "weights_removed": self.weights_removed}
        flat = asdict(self)
        logits = flat.pop("logits")
        return flat | logits | derived


def figures(model: GPT, evaluator: Evaluator) -> Figures:
    """Evaluate a model and count it."""
    evaluation, cost = evaluator(model), model_cost(model.config)
    return Figures(
        variant=variant_name(model.config.as_dict()),
        val_loss=evaluation.loss,
        bits_per_byte=evaluation.bits_per_byte,
        above_floor=evaluation.above_floor,
        accuracy=evaluation.accuracy,
        params=cost.parameters,
        cache_bytes_per_token=cost.cache_floats * model.tok_emb.weight.itemsize,
    )


def compare(before: GPT, after: GPT, evaluator: Evaluator, folded: GPT | None = None) -> Outcome:
    """Measure a conversion on the validation text.

    Args:
        before: The model that was converted.
        after: What it became.
        evaluator: For both.
        folded: The same model as `before` with its norms folded, where `after` has them folded.
    """
    score_error, output_error = weight_errors(folded or before, after)
    return Outcome(
        before=figures(before, evaluator),
        after=figures(after, evaluator),
        logits=compare_logits(before, after, evaluator.split),
        score_error=score_error,
        output_error=output_error,
    )


def weight_errors(before: GPT, after: GPT) -> tuple[float, float]:
    """The relative errors of S_h and of VO_h, of the worst layer each."""
    pairs = [
        (read_layer(old.att), read_layer(new.att))
        for old, new in zip(before.trf_blocks, after.trf_blocks, strict=True)
    ]
    return max(_score_error(*pair) for pair in pairs), max(_output_error(*pair) for pair in pairs)


def _score_error(before: Layer, after: Layer) -> float:
    return relative_error(read_scores(before).rows, read_scores(after).rows)


def _output_error(before: Layer, after: Layer) -> float:
    return relative_error(read_output(before).products, read_output(after).products)
