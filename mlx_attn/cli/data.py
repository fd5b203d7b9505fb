"""`mlx-attn data`: the texts to train on, and their contents."""

import json
import random
from dataclasses import asdict

import click

from mlx_attn.cli.options import takes_plugins
from mlx_attn.cli.output import emit, note, say
from mlx_attn.errors import find_row


@click.group(invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show, fetch and generate the texts to train on.

    Without a subcommand: the corpora and the tasks that are known by name.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_corpora)


@takes_plugins
@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_corpora(as_json: bool = False) -> None:
    """Show the corpora and the probing tasks that are known by name."""
    from mlx_attn.text import show

    corpora, tasks = show.corpora_facts(), show.tasks_facts()
    emit([*corpora, *tasks], as_json, lambda: show.listed(corpora, tasks))


@command.command()
@click.argument("name")
def fetch(name: str) -> None:
    """Download a corpus by name, verify it, and print where it is."""
    from mlx_attn.text import downloads

    corpus = find_row(downloads.CORPORA, name, "corpus")
    say(downloads.fetch(corpus, downloads.data_directory()))


@takes_plugins
@command.command("show")
@click.argument("source", default="tales")
@click.option("--tokenizer", default="bpe", show_default=True, help="char, byte, bpe, ...")
@click.option("--vocab-size", default=1024, show_default=True, help="For bpe and unigram.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def show_text(source: str, tokenizer: str, vocab_size: int, as_json: bool) -> None:
    """Show the figures and beginning of a text. SOURCE is a name, a file, a folder or -."""
    from mlx_attn.text import show
    from mlx_attn.text.corpus import prepare

    corpus = prepare(source, tokenizer, vocab_size)
    note(*corpus.notes)
    emit(show.corpus_facts(corpus), as_json)


@command.command(context_settings={"show_default": True})
@click.option("--stories", "-n", type=click.IntRange(1), default=3, help="Count.")
@click.option("--seed", type=click.IntRange(0), default=0, help="The same seed, the same stories.")
@click.option("--spans", is_flag=True, help="Colour each word by what it takes to predict it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a story, with its spans.")
def tales(stories: int, seed: int, spans: bool, as_json: bool) -> None:
    """Tell stories: the text that training uses when no other is given."""
    from mlx_attn.text import show
    from mlx_attn.text.stories import generate_story
    from mlx_attn.ui.terminal import print_text, stdout_console

    generator = random.Random(seed)
    generated = [generate_story(generator) for _ in range(stories)]
    if as_json:
        for story in generated:
            say(json.dumps(asdict(story)))
    elif spans:
        print_text(show.coloured(generated), stdout_console())
    else:
        say("".join(story.text for story in generated), nl=False, exact=True)
