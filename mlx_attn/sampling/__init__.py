"""Sampling: a trained model continues a text, token by token."""
