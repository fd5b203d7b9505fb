"""Registered studies of attention: questions, their trainings, and the pages that answer them.

The tables `questions.toml` and `worlds.toml` hold the first study. Every follow-up has its own
file, registration and correction, so it changes no verdict of the first. The records of trainings
are in docs/answers; `python -m studies write` makes the pages of them, `python -m studies verify`
computes every number again. Nothing here is part of the wheel, and nothing depends on settings or
statistics of `mlx_attn`, so that a registered word stays what it is.
"""

FOLLOW_UPS = (
    "replication",
    "widths",
    "chapter5",
    "sources",
    "recall",
    "starts",
    "rank",
    "chapter5-gpt2",
    "horizon",
    "alternatives",
    "confirmed",
    "recall-time",
    "abilities",
    "state-tracking",
    "recall-gaps",
    "delta-rules",
    "own-rates",
    "equal-parameters",
    "alternatives-longer",
    "horizon-searched",
    "fresh-seeds",
    "horizon-4800",
    "horizon-fresh",
    "gpt2-124m",
)
"""Studies by name, in the order of the page; they may reuse the first study's worlds and arms."""


CONFIRMS = {
    "replication": "",
    "own-rates": "",
    "fresh-seeds": "",
    "confirmed": "alternatives",
    "horizon-fresh": "horizon",
}
"""Confirming studies, with the study that each confirms; "" is the first study.

A study explores: it asks many contrasts with few seeds. The contrasts that matter are then asked
again by a confirming study, with seeds that no earlier training had. Only its words are quoted;
of several that confirm one study, those of the last.
"""
