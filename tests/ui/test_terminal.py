import io

from rich.console import Console

from mlx_attn.ui.terminal import print_rows, stderr_console, stdout_console

ROWS = [("name", "[bold]a text[/bold]"), ("long name", "word " * 30)]


def test_in_a_pipe_a_row_is_a_line_whatever_its_length():
    console = Console(file=io.StringIO(), width=40)
    print_rows(ROWS, console)
    assert console.file.getvalue() == (  # pyright: ignore[reportAttributeAccessIssue]
        "name       [bold]a text[/bold]\n" + "long name  " + ("word " * 30).rstrip() + "\n"
    )


def test_on_a_terminal_rows_are_wrapped_beside_their_names(monkeypatch):
    console = Console(file=io.StringIO(), width=40, color_system=None)
    monkeypatch.setattr(console.file, "isatty", lambda: True, raising=False)
    print_rows(ROWS, console)
    lines = console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]
    assert lines[0].startswith("name       [bold]a text[/bold]")
    assert len(lines) > 3
    assert all(len(line) <= 40 for line in lines)
    assert all(line.startswith(" " * 11) for line in lines[2:])


def test_consoles_write_where_they_say(capsys):
    stdout_console().print("a result")
    stderr_console().print("a message")
    assert capsys.readouterr() == ("a result\n", "a message\n")
