"""The small study of tests/answers, for what the repository makes of one."""

from tests.answers.conftest import study, tables, trained

__all__ = ["study", "tables", "trained"]
