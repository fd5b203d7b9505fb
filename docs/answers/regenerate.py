"""Makes docs/answers.md: `python docs/answers/regenerate.py`.

Runs every claim (half an hour on two cores; it goes on where it was interrupted), keeps what was
found as JSON and the differences as figures in this folder, and writes the page from the template.
With `--text` only the page is written again, from the JSON that is here.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

HERE = Path(__file__).parent
PAGE = HERE.parent / "answers.md"
TRAINED = Path("runs/claims")
SEEDS = 5


def main(arguments: list[str]) -> None:
    """Regenerate the findings, unless told not to, and the page."""
    if "--text" not in arguments:
        command = [sys.executable, "-m", "mlx_attn", "claims", "run", "--all"]
        subprocess.run([*command, "--seeds", str(SEEDS), "--out", str(TRAINED)], check=True)
        keep()
    PAGE.write_text(render(findings()), encoding="utf-8")


def keep() -> None:
    """Copy the findings here, and draw their figures."""
    from mlx_attn.comparison.figures import forest_figure
    from mlx_attn.comparison.result import read_comparison
    from mlx_attn.ui.plots import save_figure

    for file in (TRAINED / "findings").glob("*.json"):
        shutil.copy(file, HERE / "findings" / file.name)
        if (TRAINED / file.stem / "comparison.json").exists():
            comparison = read_comparison(TRAINED / file.stem)
            draw = partial(forest_figure, comparison.budgets[0], comparison)
            _, bitmap = save_figure(draw, HERE / "figures" / file.stem)
            bitmap.unlink()


def findings() -> dict[str, dict[str, Any]]:
    """What was found, by claim."""
    files = sorted((HERE / "findings").glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def render(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The page: the template's words with the findings' numbers."""
    loader = jinja2.FileSystemLoader(HERE)
    environment = jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,
    )
    names = ("word", "number", "table", "seeds", "spread", "noise")
    functions = {name: getattr(Numbers(found), name) for name in names}
    return environment.get_template("answers.md.jinja").render(found=found, **functions)


class Numbers:
    """The numbers of findings, as the template asks for them."""

    def __init__(self, found: Mapping[str, Mapping[str, Any]]):
        self.found = found

    def seeds(self, claim: str) -> int:
        """Seeds of a claim's verdict."""
        return self.found[claim]["seeds"]

    def number(self, claim: str, name: str, form: str = ".3g") -> str:
        """What an examination measured."""
        return format(self.found[claim]["numbers"][name], form)

    def spread(self, claim: str) -> str:
        """Standard deviation of the control's loss between seeds."""
        return f"{self.found[claim]['numbers']['spread between seeds']:.4f}"

    def noise(self, claim: str) -> str:
        """The A/A run, in words."""
        verdict = self.found[claim]["noise"]
        return f"{verdict['word']}, {_interval(verdict)}"

    def word(self, claim: str, arm: str, budget: str | None = None) -> str:
        """The verdict on an arm."""
        return self._arm(claim, arm, budget)["verdict"]["word"]

    def table(self, claim: str, budget: str | None = None) -> str:
        """All arms of a claim under a budget, as a Markdown table."""
        finding = self.found[claim]
        rows = [f"| | {finding['unit']} | difference, 95 % interval | verdict | parameters |"]
        rows.append("|---|---|---|---|---|")
        rows += [_row(arm) for arm in self._arms(claim, budget)]
        return "\n".join(rows)

    def _arms(self, claim: str, budget: str | None) -> list[dict[str, Any]]:
        arms = self.found[claim]["arms"]
        return arms[budget or next(iter(arms))]

    def _arm(self, claim: str, name: str, budget: str | None) -> dict[str, Any]:
        return next(arm for arm in self._arms(claim, budget) if arm["arm"] == name)


def _row(arm: Mapping[str, Any]) -> str:
    if arm["refused"]:
        return f"| {arm['arm']} | | not feasible: {arm['refused']} | | |"
    start = f"| {arm['arm']} | {arm['value']:.4f} |"
    verdict = arm["verdict"]
    if verdict is None:
        return f"{start} | the control | {arm['params']:,} |"
    return f"{start} {_interval(verdict)} | {verdict['word']} | {arm['params']:,} |"


def _interval(verdict: Mapping[str, Any]) -> str:
    low, high = verdict["interval"]
    return f"{verdict['mean']:+.4f} ({low:+.4f} to {high:+.4f})"


if __name__ == "__main__":
    main(sys.argv[1:])
