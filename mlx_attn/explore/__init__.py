"""A page that contains whole trained models, runs them, and shows every step of the computation."""
