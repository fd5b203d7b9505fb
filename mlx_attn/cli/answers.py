"""`mlx-attn answers`: what was measured about a question, and the command that asks it again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import mlx_attn
from mlx_attn.cli.options import Named
from mlx_attn.cli.output import emit
from mlx_attn.errors import find_row
from mlx_attn.records import read_record

_FILE = Path(mlx_attn.__file__).with_name("answers.json")
QUESTIONS: dict[str, Any] = read_record(_FILE)["questions"]
"""The answers by question, which `python -m studies write` makes of the trainings in a clone."""

_EXAMPLES = """\b
Examples:
  mlx-attn answers                                  the questions
  mlx-attn answers out_proj
  mlx-attn answers query --json
"""


@click.command(epilog=_EXAMPLES)
@click.argument("question", default="", type=Named(QUESTIONS))
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def command(question: str, as_json: bool) -> None:
    """Say what was measured about a part of attention, and how to ask it of your own text.

    QUESTION is a name of the list that the command prints without one, or the book's name of the
    part, such as out_proj or W_query.
    """
    if not question:
        rows = [(name, f"{one['question']} {one['answer']}") for name, one in QUESTIONS.items()]
        emit(QUESTIONS, as_json, lambda: [rows])
        return
    names = {name: one for one in QUESTIONS.values() for name in one["also"]} | QUESTIONS
    found = find_row(names, question, "question")
    emit(found, as_json, lambda: _lines(found))


def _lines(found: dict[str, Any]) -> Iterator[Any]:
    from rich.text import Text

    from mlx_attn.ui.terminal import number_table

    yield Text(f"{found['question']} {found['answer']}\n\n{found['holds_for']}\n")
    table = number_table(["", "", "steps", "seeds", "nats", "95 % interval", ""], gap=1)
    for row in found["measured"]:
        control = f" to {row['control']}" if row["control"] != "standard" else ""
        interval = "{:+.3f} to {:+.3f}".format(*row["interval"])
        where = row["form"] + control, row["text"], f"{row['steps']}", f"{row['seeds']}"
        table.add_row(*where, f"{row['difference']:+.3f}", interval, row["word"])
    if table.rows:
        yield table
    yield f"\nAsk it of your text: {found['compare']}"
