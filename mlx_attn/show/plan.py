"""The first thing a training shows: what is about to be trained, in one small table."""

from collections.abc import Sequence
from typing import Any

from mlx_attn.attention.variants import VARIANTS
from mlx_attn.model import GPTConfig, ModelCost, model_cost
from mlx_attn.show.quantities import count, memory
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.memory import FLOAT_BYTES
from mlx_attn.training.trainer import Trainer


def plan_rows(trainer: Trainer, corpus: Corpus) -> list[tuple[str, str]]:
    """What the plan says, line by line."""
    config, variant = trainer.model.config, trainer.settings.variant
    cost = model_cost(config)
    rows = [
        ("variant", variant),
        ("model", _shape(config)),
        ("parameters", f"{cost.parameters:,} ({count(cost.attention_parameters)} in attention)"),
        ("text", _text(corpus)),
        ("training", _recipe(trainer)),
        ("memory", f"{memory(_state_bytes(cost))} for weights, gradient and optimizer"),
    ]
    if variant in VARIANTS:
        rows.insert(1, ("formula", VARIANTS[variant].formula))
    return rows


def plan_facts(trainer: Trainer, corpus: Corpus) -> dict[str, Any]:
    """The plan for a program."""
    cost = model_cost(trainer.model.config)
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
        "memory": _state_bytes(cost),
    }


def replica_rows(
    replicas: Sequence[Trainer], corpus: Corpus, together: bool | None
) -> list[tuple[str, str]]:
    """The plan of several trainings of one form.

    Args:
        replicas: The trainings.
        corpus: Their text.
        together: Whether their steps are one computation; None where that is not decided.
    """
    seeds = ", ".join(str(replica.config.seed) for replica in replicas)
    how = {True: "together, as one step", False: "in turn, step by step", None: "at once"}[together]
    rows = [row for row in plan_rows(replicas[0], corpus) if row[0] != "memory"]
    states = sum(_state_bytes(model_cost(replica.model.config)) for replica in replicas)
    memory_row = ("memory", f"{memory(states)} for weights, gradients and optimizers")
    return [*rows, ("seeds", f"{seeds}: {how}"), memory_row]


def replica_facts(replicas: Sequence[Trainer], corpus: Corpus) -> dict[str, Any]:
    """The plan of several trainings for a program."""
    facts = plan_facts(replicas[0], corpus)
    memory_bytes = len(replicas) * facts["memory"]
    return {**facts, "memory": memory_bytes, "seeds": [r.config.seed for r in replicas]}


def _state_bytes(cost: ModelCost) -> int:
    """Bytes of weights, gradient and AdamW's two moments."""
    return 4 * FLOAT_BYTES * cost.parameters


def _shape(config: GPTConfig) -> str:
    heads = f"{config.n_heads} heads of {config.head_dim}"
    if config.n_kv_heads != config.n_heads:
        heads += f" ({config.n_kv_heads} for keys and values)"
    return (
        f"{config.n_layers} layers, {heads}, width {config.emb_dim}, context "
        f"{config.context_length}, {config.norm}, {config.activation}, positions {config.position}"
    )


def _text(corpus: Corpus) -> str:
    tokenizer = corpus.tokenizer
    return (
        f"{corpus.name}: {count(len(corpus.train.tokens))} tokens to train on, "
        f"{count(len(corpus.val.tokens))} to validate, {tokenizer.kind} vocabulary of "
        f"{tokenizer.vocab_size}"
    )


def _recipe(trainer: Trainer) -> str:
    tokens = f"{count(trainer.tokens_per_step)} tokens a step"
    if trainer.ranks.size > 1:
        tokens += f" shared by {trainer.ranks.size} ranks"
    done = trainer.progress.step
    so_far = f"; {done} steps are done" if done else ""
    return f"{_budget(trainer.config)}, {tokens}, {trainer.config.optimizer}{so_far}"


def _budget(training: TrainConfig) -> str:
    bounds = {
        f"{training.steps} steps": training.steps,
        f"{training.epochs:g} epochs": training.epochs,
        f"{training.minutes:g} minutes": training.minutes,
    }
    return " or ".join(text for text, bound in bounds.items() if bound)
