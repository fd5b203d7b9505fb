"""`mlx-attn import`: the book's checkpoint, GPT-2 or GGUF as a run like any other."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.options import UserPath
from mlx_attn.cli.output import emit, megabytes, model_facts, model_rows

if TYPE_CHECKING:
    from mlx_attn.interop.imported import Source

_EXAMPLES = """\b
Examples:
  mlx-attn import model.pth --data the-verdict
  mlx-attn import gpt2 --dry-run
  mlx-attn import folder-of-gpt2 --out runs/gpt2
  mlx-attn import small.pth --n-heads 4 --tokenizer runs/tiny-standard
"""


@click.command(epilog=_EXAMPLES)
@click.argument("source")
@click.option("--out", "-o", type=UserPath(), help="The run's directory.")
@click.option("--overwrite", is_flag=True, help="Replace an existing run directory.")
@click.option("--tokenizer", metavar="NAME", help="byte, gpt2, a run, a folder, a file of merges.")
@click.option("--data", default="tales", show_default=True, help="The text to train on later.")
@click.option("--n-heads", default=0, metavar="N", help="Heads of a state dict (0: emb_dim / 64).")
@click.option("--lora-alpha", default=16.0, show_default=True, help="The factor of LoRA's product.")
@click.option("--dry-run", "-n", is_flag=True, help="Say what it is and what it needs, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    source: str,
    out: Path | None,
    overwrite: bool,
    tokenizer: str | None,
    data: str,
    n_heads: int,
    lora_alpha: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a run of another program's checkpoint, which samples, converts, probes and trains on.

    SOURCE is a checkpoint of the book's GPTModel (.pth, .safetensors), a folder of Hugging Face's
    GPT-2, a GGUF file, or the name of a published GPT-2, such as gpt2-medium. Nothing of it is
    executed, and PyTorch is not needed.
    """
    from mlx_attn.interop import imported
    from mlx_attn.runs import RUNS, free_name

    checkpoint = imported.find_source(source, n_heads, lora_alpha)
    facts, plan = _plan(checkpoint)
    if dry_run:
        emit(facts, as_json, lambda: plan)
        return
    place = out or free_name(RUNS, Path(source).stem or "imported")
    run, parity = imported.import_run(checkpoint, place, data, tokenizer, overwrite)
    path = str(run.path)
    outcome, last = {"parity": None, "unread": parity}, f"not compared: {parity}"
    if not isinstance(parity, str):
        outcome, last = {"parity": asdict(parity)}, parity.line
    emit({"run": path, **facts, **outcome}, as_json, lambda: [path, *plan, last])


def _plan(checkpoint: "Source") -> tuple[dict[str, Any], list[str]]:
    """Return a checkpoint, and the memory to import and merge it, as facts and as lines."""
    from mlx_attn.interop.imported import memory_peaks

    config, named = checkpoint.config, str(checkpoint.path)
    peaks = memory_peaks(config)
    merged, peak = peaks["merged_parameters"], megabytes(peaks["convert_peak"])
    rows = {
        "source": f"{named} ({checkpoint.what})",
        **dict(model_rows(config)),
        "importing": f"at most {megabytes(peaks['import_peak'])}",
        "--to merged": f"{merged:,} parameters; converting takes at most {peak}",
    }
    facts = {"source": named, "as": checkpoint.what, **model_facts(config), **peaks}
    return facts, [f"{key:12} {text}" for key, text in rows.items()]
