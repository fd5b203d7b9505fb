"""The contrasts of docs/answers.md by each test, and what fresh seeds then gave.

    python benchmarks/judged_again.py

Of the contrasts of the first study (without those of an arm with itself and without repetitions):
how many each test decides, all corrected together as registered; and of those that were trained
again on other seeds, how often the decided direction is the one that these seeds have by either
test. The registered words are not changed.
"""

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from mlx_attn.comparison.decisions import Case, Verdict, judge_all
from mlx_attn_studies.book import RecordBook
from mlx_attn_studies.findings import TESTS, measure, rounding_floor
from mlx_attn_studies.follow_ups import follow_up
from mlx_attn_studies.schedule import Records
from mlx_attn_studies.study import Study, the_study

ANSWERS = Path(__file__).parents[1] / "docs" / "answers"
_UNSURE = ("undecided", "insensitive")


def cases_of(study: Study, records: Records, floors: Mapping[str, float]) -> dict[str, Case]:
    """Return the finished contrasts by arm, control and world."""
    found: dict[str, Case] = {}
    for _, contrast, world in study.asked():
        case = measure(study, records, contrast, world, floors.get(world, 0.0))
        if case and not study.arms[contrast.arm].jitter and not contrast.repeats:
            found[f"{contrast.arm} against {contrast.control} in {world}"] = case
    return found


def direction(word: str) -> str:
    """Return "better", "worse" or "equivalent" for a word."""
    return word.partition(" ")[0]


def main() -> None:
    """Judge, and print."""
    study = the_study()
    records = RecordBook(ANSWERS / "records").records
    floors = {world: rounding_floor(study, records, world) for world in study.worlds}
    cases = cases_of(study, records, floors)
    again_study = follow_up("replication")
    again = {**records, **RecordBook(ANSWERS / "replication" / "records").records}
    repeated = cases_of(again_study, again, {})
    asked = len(study.asked())
    for test, function in TESTS.items():
        # As many others as the page has count in the correction.
        others = {f"other {number}": None for number in range(asked - len(cases))}
        first = judge_all({**cases, **others}, study.protocol.confidence, test=function)
        words = Counter(_plain(verdict.word) for verdict in first.values())
        sys.stdout.write(f"{test}: {len(first)} contrasts, {dict(sorted(words.items()))}\n")
        for by, other in TESTS.items():
            second = judge_all(repeated, again_study.protocol.confidence, test=other)
            _report(first, second, by)


def _plain(word: str) -> str:
    return "better or worse" if direction(word) in ("better", "worse") else word


def _report(first: Mapping[str, Verdict], second: Mapping[str, Verdict], by: str) -> None:
    """Print how the decided words of repeated contrasts compare with the later ones."""
    pairs = [(first[n].word, second[n].word, n) for n in second if n in first]
    decided = [pair for pair in pairs if pair[0] not in _UNSURE]
    open_later = [n for _, later, n in decided if later in _UNSURE]
    other = [
        f"{n} ({now}, then {later})"
        for now, later, n in decided
        if later not in _UNSURE and not _agree(now, later)
    ]
    agreeing = len(decided) - len(open_later) - len(other)
    sys.stdout.write(
        f"  of {len(pairs)} trained again {len(decided)} were decided: {agreeing} have the same "
        f"word by {by}, {len(open_later)} are undecided there, {len(other)} another: "
        f"{'; '.join(other) or 'none'}\n"
    )


def _agree(now: str, later: str) -> bool:
    """Whether two words can both be true: a difference within the margin is equivalent too."""
    meanings = [
        {direction(word), *(["equivalent"] if " " in word else [])} for word in (now, later)
    ]
    return bool(meanings[0] & meanings[1])


if __name__ == "__main__":
    main()
