"""`mlx-attn import`: a checkpoint of the book, GPT-2 or nanoGPT as a run like any other."""

from pathlib import Path

import click

from mlx_attn.cli.options import UserPath, takes_plugins
from mlx_attn.cli.output import emit
from mlx_attn.errors import plural

_EXAMPLES = """\b
Examples:
  mlx-attn import model.pth --n-heads 12 --data the-verdict
  mlx-attn import folder-of-gpt2 --out runs/gpt2
  mlx-attn import ckpt.pt --tokenizer gpt2
  mlx-attn import swa.pth --n-heads 12 --window 1024 --global-every 3
"""


@takes_plugins
@click.command(epilog=_EXAMPLES)
@click.argument("source")
@click.option("--out", "-o", type=UserPath(), help="The run's directory.")
@click.option("--overwrite", is_flag=True, help="Replace an existing run directory.")
@click.option("--tokenizer", metavar="NAME", help="byte, gpt2, a run, a folder, a file of merges.")
@click.option("--data", default="tales", show_default=True, help="The text to train on later.")
@click.option("--n-heads", default=0, metavar="N", help="Number of heads, if no file says it.")
@click.option("--window", default=0, metavar="N", help="Tokens of a sliding window (chapter 4).")
@click.option("--global-every", default=0, metavar="N", help="Every n-th layer has no window.")
@click.option("--cut-vocabulary", is_flag=True, help="Cut the rows past the tokenizer's tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    source: str,
    out: Path | None,
    overwrite: bool,
    tokenizer: str | None,
    data: str,
    n_heads: int,
    window: int,
    global_every: int,
    cut_vocabulary: bool,
    as_json: bool,
) -> None:
    """Make a run of another program's checkpoint, which samples, converts, probes and trains on.

    SOURCE is a state dict of the book's GPTModel, GPT-2 or nanoGPT (.safetensors, .npz; .pth and
    .pt where PyTorch is installed), a folder of Hugging Face's GPT-2 or of 'mlx-attn export', or
    the name of a published GPT-2, such as gpt2-medium. Nothing of it is executed.
    """
    from mlx_attn.cost import model_cost
    from mlx_attn.interop.imported import find_checkpoint, import_run
    from mlx_attn.interop.names import BOOK
    from mlx_attn.runs import RUNS, free_name
    from mlx_attn.ui.terminal import memory

    checkpoint = find_checkpoint(source, n_heads, window=window, global_every=global_every)
    named, size = str(checkpoint.path), checkpoint.model.config.vocab_size
    place = out or free_name(RUNS, Path(source).stem or "imported")
    run = import_run(checkpoint, place, data, tokenizer, overwrite, cut_vocabulary)
    model, cost = run.config, model_cost(run.config)
    facts = {"run": str(run.path), "source": named, "as": checkpoint.what}
    facts |= {"model": model.as_dict(), "parameters": cost.parameters}
    facts |= {"weights": 4 * cost.parameters, "cache": cost.cache_bytes}  # bytes in float32
    cut, kind = size - model.vocab_size, run.load_tokenizer().kind
    rows = {
        "source": f"{named} ({checkpoint.what})",
        "model": f"{model.sizes}, {plural(model.vocab_size, 'token')}",
        "parameters": f"{cost.parameters:,}; {memory(4 * cost.parameters)} in float32",
        "cache": f"{memory(cost.cache_bytes)} at full context",
        "tokenizer": f"{kind}; the last {cut} rows are cut" if cut else kind,
    }
    if checkpoint.what == BOOK and checkpoint.path.is_file() and not window:
        rows["windows"] = "none: a state dict does not say them, --window N does"
    emit(facts, as_json, lambda: [run.path, [*rows.items()]])
