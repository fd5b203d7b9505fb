from dataclasses import dataclass

import pytest

from mlx_attn.repl.screen import interactive_loop, read_lines


@dataclass
class Fingers:
    """Types lines, and then presses Ctrl-D."""

    lines: list[str]

    def __call__(self) -> str:
        if not self.lines:
            raise EOFError
        return self.lines.pop(0)


@pytest.fixture
def hasty(page, monkeypatch):
    """A screen on which Ctrl-C is pressed after the third piece of an answer."""

    def stream(pieces):
        shown = [next(pieces) for _ in range(3)]
        page.answers.append("".join(shown))
        raise KeyboardInterrupt

    monkeypatch.setattr(page, "stream", stream)
    return page


def test_ctrl_c_stops_the_answer_keeps_the_text_and_shows_what_it_cost(session, hasty):
    interactive_loop(session, Fingers(["a", "/more"]))
    assert hasty.answers == ["bcd", "efg"]
    assert session.turns[0].answers[0].finish_reason == "interrupted"
    assert hasty.messages[0].startswith("3 tokens")
    assert hasty.messages[1] == "stopped; /more continues"
    assert session.story("alpha") == "abcdefg"


def test_a_bug_does_not_end_the_conversation(session, page, monkeypatch):
    def broken(session, text):
        raise KeyError("nothing")

    monkeypatch.setattr("mlx_attn.repl.commands.handle_input", broken)
    interactive_loop(session, Fingers(["a", "x"]))
    assert page.messages == ["that failed (KeyError: 'nothing'); nothing is lost"] * 2


def test_ctrl_d_ends_the_conversation_and_nothing_is_read_after_quit(session, page):
    interactive_loop(session, Fingers([]))
    assert page.messages == []
    fingers = Fingers(["/quit", "a"])
    interactive_loop(session, fingers)
    assert fingers.lines == ["a"]


def test_a_pipe_holds_prompts_commands_and_blocks_which_its_end_closes(session, page):
    read_lines(session, ['"""a\n', "x"])
    assert session.turns[0].prompt == "a\nx"
    page.answers.clear()
    read_lines(session, ["/max 2\n", "\n", "a\n", '"""\n', "/x\n", '"""\n', "/quit\n", "b\n"])
    assert page.answers == ["bc", "yz"]
