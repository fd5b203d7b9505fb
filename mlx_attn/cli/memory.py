"""`--dry-run` of the commands that read a model: the memory it takes, before it is allocated."""

from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.output import emit

if TYPE_CHECKING:
    from mlx_attn.model.config import GPTConfig
    from mlx_attn.run_directory import Run


dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Say how much memory it takes, and stop."
)


def show_plan(
    run: "Run", doing: str, peak: int, as_json: bool, becomes: "GPTConfig | None" = None
) -> None:
    """A model's size and the most memory that doing something with it takes.

    Args:
        run: Whose model it is.
        doing: The action, in a word.
        peak: Bytes of the whole process.
        as_json: As one JSON object.
        becomes: The resulting model.
    """
    from mlx_attn.machine.facts import usable_memory

    facts = {"run": str(run.path), **model_facts(run.config), "peak": peak}
    facts |= {"becomes": model_facts(becomes)} if becomes else {}
    rows = [("run", str(run.path)), *model_rows(run.config)]
    rows += [("becomes", f"{model_facts(becomes)['parameters']:,} parameters")] if becomes else []
    rows += [(doing, f"takes at most {megabytes(peak)}")]
    rows += [("usable", megabytes(usable_memory()))]
    emit({**facts, "usable": usable_memory()}, as_json, lambda: [rows])


def model_facts(config: "GPTConfig") -> dict[str, Any]:
    """A model's settings, parameters, and bytes of its weights and its full cache in float32."""
    from mlx_attn.model.gpt import cache_bytes, model_cost

    parameters = model_cost(config).parameters
    cache = cache_bytes(config, config.context_length, 4)
    sizes = {"parameters": parameters, "weights": 4 * parameters, "cache": cache}
    return {"model": config.as_dict(), **sizes}


def model_rows(config: "GPTConfig") -> list[tuple[str, str]]:
    """The same for people."""
    facts = model_facts(config)
    sizes = (
        f"{config.n_layers} layers, {config.n_heads} heads, width {config.emb_dim}, "
        f"context {config.context_length}, {config.vocab_size} tokens"
    )
    weights = f"{facts['parameters']:,}; {megabytes(facts['weights'])} in float32"
    cache = f"{megabytes(facts['cache'])} at full context"
    return [("model", sizes), ("parameters", weights), ("cache", cache)]


def megabytes(n_bytes: int) -> str:
    """Bytes in whole megabytes, to be compared with each other."""
    return f"{n_bytes / 1e6:,.0f} MB"
