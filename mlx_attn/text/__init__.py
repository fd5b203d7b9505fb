"""Text: where it comes from, how it becomes tokens, and the corpus that training reads."""
