"""`mlx-attn import`: a checkpoint of the book, GPT-2 or nanoGPT as a run like any other."""

from pathlib import Path

import click

from mlx_attn.cli.options import UserPath
from mlx_attn.cli.output import emit, model_facts, model_rows

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
    facts = {"run": str(run.path), "source": named, "as": checkpoint.what, **model_facts(config)}
    rows = [("source", f"{named} ({checkpoint.what})"), *model_rows(config)]
    lines = [run.path, *(f"{key:12} {text}" for key, text in rows)]
    emit(facts, as_json, lambda: lines)
