"""`mlx-attn sample`: continue a prompt; only the continuation goes to stdout."""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from mlx_attn.about import PREFIX
from mlx_attn.cli.main import INTERRUPTED
from mlx_attn.cli.options import GroupedOption, given, options_from, takes_plugins
from mlx_attn.cli.output import note, say
from mlx_attn.errors import RunError
from mlx_attn.files import user_path
from mlx_attn.records import unix_lines
from mlx_attn.sampling.config import SamplerConfig

if TYPE_CHECKING:
    from mlx_attn.sampling.generate import GenerationStep, Statistics

_sampling = partial(GroupedOption, "Sampling")
SAMPLING_OPTIONS: list[click.Parameter] = [
    _sampling(
        "--max-tokens", "-m", default=200, help="most new tokens", envvar=PREFIX + "MAX_TOKENS"
    ),
    *options_from(SamplerConfig, "Sampling", shows_defaults=True),
    # Not from the environment: click would cut its value into words.
    _sampling("--stop", multiple=True, metavar="TEXT", help="stop before TEXT; repeatable"),
    _sampling(
        "--ignore-eos",
        is_flag=True,
        help="go on where a document, such as a story, ends",
        envvar=PREFIX + "IGNORE_EOS",
    ),
]


def _named_or_latest(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """Return the given name; without one, choose the latest finished run and print its name."""
    from mlx_attn.runs import find_run, run_names
    from mlx_attn.text.sources import describe

    takes_text = any(option.name == "prompt" for option in ctx.command.params)
    unknown = name and name not in run_names() and not user_path(name).exists()
    if takes_text and unknown and " " in str(name):
        raise click.UsageError(f"there is no run '{name}': a text goes after --prompt", ctx)
    if name is not None or ctx.params.get("as_list") or len(run_names()) < 2:
        return name
    run = find_run()
    facts = [str(run.settings.get("variant", ""))]
    facts += [f"trained on {describe(run.corpus)}"] if run.corpus else []  # unlike an import
    facts += [] if run.is_finished() else ["its training was not finished"]
    note(f"the latest run: {run.path} ({', '.join(filter(None, facts))})")
    return str(run.path)


def complete_run(ctx: click.Context, param: click.Parameter, start: str) -> list[CompletionItem]:
    """Return the names of runs that begin like this; without any, complete a directory."""
    from mlx_attn.runs import run_names

    names = [name for name in run_names() if name.startswith(start)]
    return [CompletionItem(name) for name in names] or [CompletionItem(start, type="dir")]


run_argument = click.argument(
    "run", required=False, shell_complete=complete_run, callback=_named_or_latest
)
"""RUN: a directory, or a name in runs/; left out, the latest finished run."""

LONGEST_PROMPT = 64_000_000  # bytes on standard input, which may be endless


def _prompt_text(ctx: click.Context, param: click.Parameter, prompt: str | None) -> str | None:
    """Return the prompt; for -, the text on stdin, without a byte order mark and a last newline."""
    if prompt != "-" or ctx.resilient_parsing:
        return prompt
    data = sys.stdin.buffer.read(LONGEST_PROMPT + 1)
    if len(data) > LONGEST_PROMPT:
        raise RunError(f"standard input is longer than {LONGEST_PROMPT:,} bytes: give less")
    try:
        return unix_lines(data.decode("utf-8-sig")).removesuffix("\n")
    except UnicodeDecodeError as error:
        raise RunError(
            f"standard input is not UTF-8 ({error.reason} at byte {error.start})"
        ) from error


prompt_option = partial(click.option, "--prompt", "-p", metavar="TEXT", callback=_prompt_text)
"""TEXT, or - for the text on stdin."""

_EXAMPLES = """\b
Examples:
  mlx-attn sample --prompt "One rainy day" --seed 1
  mlx-attn sample runs/tiny-standard --prompt - --temp 0 < story.txt
  mlx-attn sample -n 8 --seed 1 --json > eight.jsonl
"""


@takes_plugins
@click.command(params=[*SAMPLING_OPTIONS], epilog=_EXAMPLES)
@run_argument
@prompt_option(default="", help="Text to continue; - reads stdin.", envvar=PREFIX + "PROMPT")
@click.option(
    "--num-samples",
    "-n",
    default=1,
    help="Continuations; number k has the seed SEED + k.",
    envvar=PREFIX + "NUM_SAMPLES",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object each instead.")
def command(
    run: str | None,
    prompt: str,
    num_samples: int,
    max_tokens: int,
    stop: tuple[str, ...],
    ignore_eos: bool,
    as_json: bool,
    **sampler: Any,
) -> None:
    """Continue a prompt with a trained model.

    RUN is a directory or a name in runs/; without it, the latest finished one. The continuation
    goes to stdout, and a newline after it. It ends where a document of the text that the run
    was trained on would end, such as a story. Ctrl-C stops it. Several are written as one
    batch, with a line --- between them.
    """
    from mlx_attn.runs import load_run

    config = SamplerConfig(**given(sampler))
    loaded = load_run(run)
    stop += () if ignore_eos else loaded.document_ends
    steps = loaded.stream(prompt, config, max_tokens, stop, num_samples)
    texts, costs = _written(steps, num_samples, num_samples == 1 and not as_json)
    if as_json:
        for text, cost in zip(texts, costs, strict=True):
            facts: dict[str, Any] = asdict(cost) if cost else {}
            facts["finish_reason"] = facts.get("finish_reason") or "interrupted"
            say(json.dumps({"run": str(loaded.run.path), "prompt": prompt, "text": text, **facts}))
    elif num_samples > 1:
        say("\n---\n".join(texts), exact=True)
    first, context = costs[0], loaded.model.config.context_length
    if first and first.prompt_read < first.prompt_tokens and not as_json:
        read = f"the last {first.prompt_read:,} of {first.prompt_tokens:,} prompt tokens"
        note(
            f"the model read {read}: the prompt is longer than its context of {context:,}, half of "
            "which is left free for the continuation"
        )
    if not all(cost and cost.finish_reason for cost in costs):
        click.get_current_context().exit(INTERRUPTED)


def _written(
    steps: "Iterator[GenerationStep]", count: int, as_it_comes: bool
) -> tuple[list[str], "list[Statistics | None]"]:
    """Return what is written until Ctrl-C, with its statistics; print a single text as it comes."""
    from mlx_attn.ui.terminal import print_stream, stdout_console

    texts = [""] * count
    costs: list[Statistics | None] = [None] * count

    def pieces() -> "Iterator[str]":
        for step in steps:
            texts[step.number] += step.text
            costs[step.number] = step.statistics
            yield step.text

    with suppress(KeyboardInterrupt):
        if as_it_comes:
            print_stream(pieces(), stdout_console())
        else:
            list(pieces())
    return texts, costs
