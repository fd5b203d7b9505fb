"""The study behind docs/answers.md: registered questions, their trainings, and the findings."""
