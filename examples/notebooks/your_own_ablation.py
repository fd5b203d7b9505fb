# %% [markdown]
# # Is W_query needed? Your own ablation
#
# Two forms of attention are trained with the same seeds, and their difference is judged beside its
# noise. The sizes here are so small that the cell ends in a minute; the answer is worth as little.
# Change `SETTINGS` to ask seriously: `mlx-attn compare --help` names the defaults that can answer.

# %%
import mlx_attn
from mlx_attn.training.events import Stepped

SETTINGS = {"preset": "nano", "steps": 30, "batch_size": 4, "emb_dim": 32, "n_heads": 2}

# %% [markdown]
# ## One training, event by event
#
# As a script this file is imported again by every process that `compare` starts, so whatever trains
# stands under `if __name__ == "__main__"`; in a notebook that changes nothing.

# %%
if __name__ == "__main__":
    training = mlx_attn.train(variant="no-query", **SETTINGS)
    for event in training:
        if isinstance(event, Stepped):
            print(f"step {event.step:4}  loss {event.loss:.3f}")

# %%
training if __name__ == "__main__" else None  # pyright: ignore[reportPossiblyUnboundVariable]

# %%
if __name__ == "__main__":
    model = training.model  # pyright: ignore[reportPossiblyUnboundVariable]
    print(model.generate("Once upon a time", max_tokens=30, temp=0.7, seed=1))

# %% [markdown]
# ## Two forms, several seeds, one answer
#
# `compare` also trains the reference without scores, which says what queries and keys are worth
# here. Where they are worth little, no verdict on W_query means anything, and the word is
# "insensitive".

# %%
if __name__ == "__main__":
    result = mlx_attn.compare(
        "standard", "no-query", out="runs/is-w-query-needed", seeds=2, tune=False, **SETTINGS
    )
    print(result)
