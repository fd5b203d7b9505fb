"""The study behind docs/answers.md: registered questions, their trainings, and what follows."""
