"""All that a person sees: progress, tables, the REPL, figures."""
