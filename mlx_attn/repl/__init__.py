"""The REPL: talk to a trained model, or to two side by side."""
