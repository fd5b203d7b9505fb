"""How a probe is shown: a table in the terminal, figures, one page that needs no network."""
