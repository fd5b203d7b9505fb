"""Tokens per second of several seeds: one step of each in turn, and all as one mapped step.

    python benchmarks/replicas.py [--seeds 1,2,4,8] [--rounds 12] [KEY=VALUE ...]

Steps of both kinds alternate, so that what else the machine does falls on both alike. A key is any
setting, such as preset=nano or emb_dim=32.
"""

import argparse

from mlx_attn.text.corpus import prepare
from mlx_attn.training.config import resolve
from mlx_attn.training.replicas import step_times, with_seeds


def main() -> None:
    """Print a line for every number of seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1,2,4,8")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    settings = resolve({"preset": "nano"}, dict(map(_setting, arguments.settings)))
    text = settings.text
    corpus = prepare(text.data, text.tokenizer, text.vocab_size)
    T = settings.model_config(corpus.tokenizer.vocab_size).context_length
    for count in map(int, arguments.seeds.split(",")):
        apart, together = step_times(with_seeds(settings, count), corpus, arguments.rounds)
        tokens = count * settings.training.batch_size * settings.training.accumulate * T
        speeds = f"in turn {tokens / apart:,.0f} tok/s  together {tokens / together:,.0f} tok/s"
        print(f"{count} seeds  {speeds}  gain {apart / together:.2f}", flush=True)  # noqa: T201


def _setting(text: str) -> tuple[str, object]:
    key, _, value = text.partition("=")
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    return key, value


if __name__ == "__main__":
    main()
