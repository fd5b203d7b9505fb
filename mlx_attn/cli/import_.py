"""`mlx-attn import`: a checkpoint of the book, GPT-2 or nanoGPT as a run like any other."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.options import UserPath
from mlx_attn.cli.output import emit

if TYPE_CHECKING:
    from mlx_attn.model.config import GPTConfig

_EXAMPLES = """\b
Examples:
  mlx-attn import model.pth --n-heads 12 --data the-verdict
  mlx-attn import folder-of-gpt2 --out runs/gpt2
  mlx-attn import ckpt.pt --tokenizer gpt2
"""


@click.command(epilog=_EXAMPLES)
@click.argument("source")
@click.option("--out", "-o", type=UserPath(), help="The run's directory.")
@click.option("--overwrite", is_flag=True, help="Replace an existing run directory.")
@click.option("--tokenizer", metavar="NAME", help="byte, gpt2, a run, a folder, a file of merges.")
@click.option("--data", default="tales", show_default=True, help="The text to train on later.")
@click.option("--n-heads", default=0, metavar="N", help="Number of heads, if no file says it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    source: str,
    out: Path | None,
    overwrite: bool,
    tokenizer: str | None,
    data: str,
    n_heads: int,
    as_json: bool,
) -> None:
    """Make a run of another program's checkpoint, which samples, converts, probes and trains on.

    SOURCE is a state dict of the book's GPTModel, GPT-2 or nanoGPT (.safetensors, .npz; .pth and
    .pt where PyTorch is installed), a folder of Hugging Face's GPT-2 or of 'mlx-attn export', or
    the name of a published GPT-2, such as gpt2-medium. Nothing of it is executed.
    """
    from mlx_attn.interop.imported import find_checkpoint, import_run
    from mlx_attn.runs import RUNS, free_name

    checkpoint = find_checkpoint(source, n_heads)
    config, named = checkpoint.model.config, str(checkpoint.path)
    place = out or free_name(RUNS, Path(source).stem or "imported")
    run = import_run(checkpoint, place, data, tokenizer, overwrite)
    sizes = _model_facts(config)
    facts = {"run": str(run.path), "source": named, "as": checkpoint.what, **sizes}
    rows = [("source", f"{named} ({checkpoint.what})"), *_model_rows(sizes)]
    lines = [run.path, *(f"{key:12} {text}" for key, text in rows)]
    emit(facts, as_json, lambda: lines)


def _model_facts(config: "GPTConfig") -> dict[str, Any]:
    """Return a model's settings, parameters, and bytes of weights and full cache in float32."""
    from mlx_attn.cost import cache_bytes, model_cost

    parameters, cache = model_cost(config).parameters, cache_bytes(config, config.context_length, 4)
    sizes = {"parameters": parameters, "weights": 4 * parameters, "cache": cache}
    return {"model": config.as_dict(), **sizes}


def _model_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the same for people."""
    from mlx_attn.ui.terminal import memory

    sizes = (
        "{n_layers} layers, {n_heads} heads, width {emb_dim}, context {context_length}, "
        "{vocab_size} tokens"
    )
    weights = f"{facts['parameters']:,}; {memory(facts['weights'])} in float32"
    cache = f"{memory(facts['cache'])} at full context"
    return [("model", sizes.format(**facts["model"])), ("parameters", weights), ("cache", cache)]
