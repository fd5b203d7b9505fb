"""A page that holds trained models whole, runs them, and shows every step of what they compute."""
