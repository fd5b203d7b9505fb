"""The plan of a training, line by line or as facts: what is trained on what, and what it takes."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mlx_attn.attention.config import VARIANTS
from mlx_attn.errors import plural
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import ModelCost, model_cost
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.forecast import Forecast
from mlx_attn.training.trainer import FLOAT_BYTES, Trainer
from mlx_attn.ui.terminal import count, duration, memory


def plan_rows(
    trainers: Sequence[Trainer],
    corpus: Corpus,
    together: bool | None = None,
    expected: Forecast | None = None,
) -> list[tuple[str, str]]:
    """The plan of a training, or of several of one form, line by line.

    `together` says whether several take their steps as one; None where that is not decided.
    `expected` is of one of them.
    """
    config, variant = trainers[0].model.config, trainers[0].settings.variant
    cost = model_cost(config)
    rows = {"variant": variant}
    if variant in VARIANTS:
        rows["formula"] = VARIANTS[variant].formula
    rows |= {
        "model": _shape(config),
        "parameters": f"{cost.parameters:,} ({count(cost.attention_parameters)} in attention)",
        "text": f"{corpus.name}: {count(len(corpus.train.tokens))} tokens to train on, "
        f"{count(len(corpus.val.tokens))} to validate, {corpus.tokenizer.kind} vocabulary of "
        f"{corpus.tokenizer.vocab_size}",
        "training": _recipe(trainers[0]),
    }
    if len(trainers) > 1:
        seeds = ", ".join(str(trainer.config.seed) for trainer in trainers)
        how = {True: "together, as one step", False: "in turn, step by step", None: "at once"}
        rows["seeds"] = f"{seeds}: {how[together]}"
    states = memory(len(trainers) * _state_bytes(cost))
    rows["memory"] = f"{states} for weights, gradients and optimizer"
    if expected:
        each = " for each seed" if len(trainers) > 1 else ""
        rows["memory"] += f"; about {memory(expected.peak_memory)} at the peak{each}"
        rows["time"] = f"about {_time(expected)}{each}"
    return list(rows.items())


def _time(expected: Forecast) -> str:
    step = f"{expected.step_seconds:.2g} s" if expected.step_seconds >= 1 else ""
    step = step or f"{1000 * expected.step_seconds:.3g} ms"
    validation = duration(expected.validation_seconds)
    return (
        f"{duration(expected.seconds)}: {plural(expected.steps, 'step')} of {step}, "
        f"{plural(expected.validations, 'validation')} of {validation}, as measured now"
    )


def plan_facts(
    trainers: Sequence[Trainer], corpus: Corpus, expected: Forecast | None = None
) -> dict[str, Any]:
    """The plan for a program."""
    trainer, cost = trainers[0], model_cost(trainers[0].model.config)
    seeds = [trainer.config.seed for trainer in trainers]
    return {
        "event": "plan",
        "variant": trainer.settings.variant,
        "params": cost.parameters,
        "attention_params": cost.attention_parameters,
        "step": trainer.progress.step,
        "steps": trainer.steps,
        "tokens_per_step": trainer.tokens_per_step,
        "training_tokens": len(corpus.train.tokens),
        "validation_tokens": len(corpus.val.tokens),
        "vocab_size": corpus.tokenizer.vocab_size,
        "memory": len(trainers) * _state_bytes(cost),
        **({"seeds": seeds} if len(trainers) > 1 else {}),
        **({"forecast": asdict(expected)} if expected else {}),
    }


def _state_bytes(cost: ModelCost) -> int:
    """Bytes of weights, gradient and AdamW's two moments."""
    return 4 * FLOAT_BYTES * cost.parameters


def _shape(config: GPTConfig) -> str:
    heads = f"{plural(config.n_heads, 'head')} of {config.head_dim}"
    if config.n_kv_heads != config.n_heads:
        heads += f" ({config.n_kv_heads} for keys and values)"
    return (
        f"{plural(config.n_layers, 'layer')}, {heads}, width {config.emb_dim}, context "
        f"{config.context_length}, {config.norm}, {config.activation}, positions {config.position}"
    )


def _recipe(trainer: Trainer) -> str:
    config, done = trainer.config, trainer.progress.step
    bounds = {"step": config.steps, "epoch": config.epochs, "minute": config.minutes}
    budget = " or ".join(plural(n, unit) for unit, n in bounds.items() if n)
    tokens = f"{count(trainer.tokens_per_step)} tokens a step"
    if trainer.ranks.size > 1:
        tokens += f" shared by {trainer.ranks.size} ranks"
    recipe = f"{budget}, {tokens}, {config.optimizer}"
    if 0 < trainer.steps < config.warmup:
        share = trainer.steps / (config.warmup + 1)
        recipe += (
            f"; the learning rate only reaches {share:.1g} of its peak, since its warm-up takes "
            f"{config.warmup} steps"
        )
    return recipe + (f"; {done} steps are done" if done else "")
