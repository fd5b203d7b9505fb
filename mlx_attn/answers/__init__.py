"""The study behind docs/answers.md: registered questions, trainings and verdicts."""
