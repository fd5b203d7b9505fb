"""The README's findings say what the records say."""

import re
from pathlib import Path
from statistics import fmean

from studies.book import RecordBook
from studies.findings import findings
from studies.follow_ups import follow_up

ROOT = Path(__file__).parents[2]
ANSWERS = ROOT / "docs" / "answers"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def finding(name: str) -> list[str]:
    """The text of one of the README's findings, and the words that its comment names."""
    pattern = rf"^- ([^<]*)<!-- finding: {name} (.*?) -->"
    ((text, words),) = re.findall(pattern, README, re.MULTILINE)
    return [text, *words.split()]


def test_the_readme_s_differences_are_those_of_the_records():
    records = RecordBook(ANSWERS / "fresh-seeds" / "records").records
    confirmed = [f for f in findings(follow_up("fresh-seeds"), records) if f.verdict]
    for arm in ("no-out-proj", "merged", "no-query"):
        said, *texts = finding(arm)
        means = {
            one.text: fmean(one.verdict.differences)
            for one in confirmed
            if one.contrast.arm == arm and one.verdict
        }
        assert re.findall(r"[+-]\d\.\d{3}", said) == [f"{means[text]:+.3f}" for text in texts]
    assert {len(one.verdict.differences) for one in confirmed if one.verdict} == {24}
    assert "a mean over 24 seeds" in README


def test_the_readme_s_losses_of_chapter_5_are_those_of_the_records():
    text, *arms = finding("chapter5-gpt2")
    book = RecordBook(ANSWERS / "chapter5-gpt2" / "records")
    losses = {record.arm: record.loss for record in book.records.values()}
    assert re.findall(r"\d\.\d{3}", text) == [f"{losses[arm]:.3f}" for arm in arms]
