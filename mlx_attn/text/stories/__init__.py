"""Stories made by a grammar, with their exact probability: the default training text."""
