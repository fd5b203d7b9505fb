"""Text: its sources, its tokens, and the corpus that training reads."""
