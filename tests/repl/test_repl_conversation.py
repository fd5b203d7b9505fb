"""Whole conversations, without a terminal. The model continues the alphabet."""

from pathlib import Path
from unittest.mock import Mock

import pytest

TALKS = {
    "any text is continued": (["/max 3", "a", "help me", "no quit"], ["bcd", "fgh", "uvw"]),
    "a command in quotes too": (["/max 3", '"""help"""'], ["qrs"]),
    "each prompt is read alone": (["/max 1", "abc", "x"], ["d", "y"]),
    "a stop text ends an answer before it": (["/stop ef", "a"], ["bcd"]),
    "more goes on beyond it": (["/stop ef", "/max 6", "a", "/more"], ["bcd", "ghijkl"]),
    "more goes on with the text so far": (
        ["/max 2", "a", "/more", "/more x"],
        ["bc", "de", "yz"],
    ),
    "retry of more goes on from the same text": (
        ["/max 2", "a", "/more", "/retry"],
        ["bc", "de", "de"],
    ),
    "another run goes on with the text": (["/max 2", "a", "/model beta", "/more"], ["bc", "de"]),
}


@pytest.mark.parametrize(("lines", "answers"), TALKS.values(), ids=TALKS)
def test_a_talk_goes_on_from_what_was_said(typed, page, lines, answers):
    typed(*lines)
    assert page.answers == answers


@pytest.mark.parametrize(
    ("lines", "judged"),
    [(["/max 1", "/vs beta", "zqzqz", "abcd"], 1), (["/max 1", "abcd", "/more zqzqz"], 0)],
    ids=["a prompt, once", "not a text that goes on"],
)
def test_a_prompt_that_the_model_cannot_know_is_answered_with_a_line(typed, page, lines, judged):
    typed(*lines)
    lines = [line for line in page.messages if "your text costs it" in line]
    assert len(lines) == judged
    assert all("guessing would cost 5.55" in line and "--data notes/" in line for line in lines)


def test_what_begins_with_a_slash_can_be_said(typed, session):
    typed("//a", '"""\n/quit\nx\n"""', "/usr\n/bin")
    assert [turn.prompt for turn in session.turns] == ["/a", "/quit\nx", "/usr\n/bin"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/hlep", "unknown command '/hlep': did you mean '/help'?"),
        ("/set tmep 1", "unknown setting 'tmep': did you mean 'temp'?"),
        ("/set temp hot", "temp='hot' must be a finite number"),
        ("/temp -1", "temp=-1.0 must be at least 0"),
        ("/more", "there is no text to continue yet: type one"),
        ("/model nowhere", "there is no run 'nowhere'"),
        ("/vs alpha", "alpha answers already: name another run"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(typed, page, line, message):
    typed(line)
    assert page.messages == [message]


def test_unknown_characters_are_named_and_nothing_is_kept(typed, page, session):
    typed("/model letters", "abcd", "/retry")
    assert "'d'" in page.messages[1]
    assert session.turns == []


def test_a_setting_is_typed_and_taken_back_in_several_ways(typed):
    assert typed("/set temp=0.5").settings.temp == 0.5
    assert typed("/TEMP 0.6").settings.temp == 0.6
    assert typed("/topk=3").settings.top_k == 3
    session = typed("/seed 5", "/seed none", "/stop x", "/stop none")
    assert (session.settings.seed, session.settings.stop) == (None, ())


def test_an_answer_ends_where_a_document_ends_unless_it_is_told_to_go_on(session, typed, page):
    session.run.tokenizer.end_of_text = "."
    typed("v", "z")
    assert page.answers == ["wxyz", ""]
    assert page.messages[-1] == "the text ends there; /more goes on beyond"
    typed("/ignore_eos on", "/max 6", "v")
    assert page.answers[-1] == "wxyz./"


def test_retry_answers_the_last_prompt_again_with_the_next_seed(typed, session):
    typed("/seed 5", "/max 1", "a", "x", "/retry", "/retry")
    turns = session.turns
    assert [turn.prompt for turn in turns] == ["a", "x"]
    assert [turn.answers[0].cost.seed for turn in turns] == [5, 7]


def test_reset_forgets_all_turns_and_no_setting(typed, session):
    typed("/temp 0.1", "a", "/reset")
    assert (session.turns, session.settings.temp) == ([], 0.1)


def test_runs_are_listed_with_numbers_which_mean_the_list_that_was_shown(typed, page, session):
    session.list_runs = lambda: [("beta", "standard, 2 MB"), ("alpha", "merged")]
    typed("/runs")
    assert page.messages[:2] == ["1  beta: standard, 2 MB", "2  alpha: merged"]
    session.list_runs = lambda: [("alpha", ""), ("beta", "")]
    typed("/vs 1")
    assert session.other_run.name == "beta"
    typed("/vs off", "/model", "/model 2")
    assert session.run.name == "beta"


def test_attn_makes_a_page_of_the_last_text(typed, page, session):
    asked = []
    session.make_page = lambda runs, text: asked.append((len(runs), text)) or Path("page.html")
    typed("/max 2", "/vs beta", "a", "/more", "/attn")
    assert asked == [(2, "abcde")]
    assert page.answers == ["[alpha]", "bc", "[beta]", "bc", "[alpha]", "de", "[beta]", "de"]
    assert page.messages[-1] == "what the heads attend to in the last text: page.html"


def test_a_failure_of_mlx_comes_with_advice(typed, page, monkeypatch):
    monkeypatch.setattr(page, "stream", Mock(side_effect=RuntimeError("[malloc] no")))
    typed("once")
    assert page.messages[-1].startswith("out of memory")
