"""The first thing a training shows: what is about to be trained, in one small table."""

from rich.console import Console
from rich.table import Table

from mlx_attn.attention.variants import VARIANTS
from mlx_attn.model import GPTConfig, model_cost
from mlx_attn.show.quantities import count, memory
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.settings import Settings

FLOAT_BYTES = 4


def plan_rows(settings: Settings, config: GPTConfig, corpus: Corpus) -> list[tuple[str, str]]:
    """What the plan says, line by line."""
    cost = model_cost(config)
    training = settings.training
    tokens = training.batch_size * training.accumulate * config.context_length
    rows = [
        ("variant", settings.variant),
        ("model", _shape(config)),
        ("parameters", f"{cost.parameters:,} ({count(cost.attention_parameters)} in attention)"),
        ("text", _text(corpus)),
        ("training", f"{_budget(settings)}, {count(tokens)} tokens a step, {training.optimizer}"),
        ("weights, gradient, optimizer", memory(4 * FLOAT_BYTES * cost.parameters)),
    ]
    if settings.variant in VARIANTS:
        rows.insert(1, ("formula", VARIANTS[settings.variant].formula))
    return rows


def print_plan(rows: list[tuple[str, str]], console: Console) -> None:
    """Print the plan."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, text)
    console.print(table)


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


def _budget(settings: Settings) -> str:
    training = settings.training
    bounds = {
        f"{training.steps} steps": training.steps,
        f"{training.epochs:g} epochs": training.epochs,
        f"{training.minutes:g} minutes": training.minutes,
    }
    return " or ".join(text for text, bound in bounds.items() if bound)
