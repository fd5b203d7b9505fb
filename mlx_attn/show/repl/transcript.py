"""What was said: prompts and answers, as JSON that loads again or as text to read."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mlx_attn.errors import RunError
from mlx_attn.files import write_text


@dataclass(slots=True)
class Answer:
    """What one run said; it grows while the run speaks.

    Attributes:
        run: The run's name.
        seed: What makes the same text again.
        text: The continuation.
        tokens: Its tokens.
        finish_reason: `length`, `stop`, or `interrupted`.
    """

    run: str
    seed: int
    text: str = ""
    tokens: int = 0
    finish_reason: str = "interrupted"


@dataclass(slots=True)
class Turn:
    """A prompt and its answers.

    Attributes:
        prompt: What was typed.
        answers: One of each run that was asked.
        follows: Whether the prompt goes on where the last turn ended.
        attempt: How many answers of this turn were thrown away.
    """

    prompt: str
    answers: list[Answer] = field(default_factory=list)
    follows: bool = False
    attempt: int = 0

    def text(self, run: str) -> str:
        """The prompt and the run's answer, or the first answer where the run gave none."""
        said = {answer.run: answer.text for answer in reversed(self.answers)}
        first = self.answers[0].text if self.answers else ""
        return self.prompt + said.get(run, first)


@dataclass(slots=True)
class Transcript:
    """Turns, the oldest first."""

    turns: list[Turn] = field(default_factory=list)

    def story(self, run: str) -> str:
        """The text so far, as the run has it: the last turn, with those that it follows."""
        return _joined(self._stories()[-1], run) if self.turns else ""

    def _stories(self) -> list[list[Turn]]:
        """The turns, grouped with those that follow them."""
        stories: list[list[Turn]] = []
        for turn in self.turns:
            if not (turn.follows and stories):
                stories.append([])
            stories[-1].append(turn)
        return stories

    def as_text(self) -> str:
        """All stories, for reading."""
        return "\n\n---\n\n".join(map(_readable, self._stories())) + "\n"

    def save(self, path: Path) -> None:
        """Write to a file: JSON if its name ends in .json, text otherwise.

        Raises:
            RunError: It cannot be written.
        """
        as_json = json.dumps({"turns": [asdict(turn) for turn in self.turns]}, indent=1) + "\n"
        write_text(path, as_json if path.suffix == ".json" else self.as_text())


def load_transcript(path: Path) -> Transcript:
    """A transcript that was saved as JSON.

    Raises:
        RunError: The file is missing, or is no transcript.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Transcript([_turn(turn) for turn in data["turns"]])
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{path}: not a transcript; load one that was saved under a name ending in .json"
        ) from error


def _turn(data: Mapping[str, Any]) -> Turn:
    answers = [Answer(**answer) for answer in data["answers"]]
    texts = [data["prompt"], *(text for answer in answers for text in (answer.run, answer.text))]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a prompt, a run or an answer that is no text")
    return Turn(**{**data, "answers": answers})


def _joined(story: list[Turn], run: str) -> str:
    return "".join(turn.text(run) for turn in story)


def _readable(story: list[Turn]) -> str:
    runs = list(dict.fromkeys(answer.run for turn in story for answer in turn.answers))
    if len(runs) < 2:
        return _joined(story, runs[0] if runs else "")
    return "\n\n".join(f"[{run}]\n{_joined(story, run)}" for run in runs)
