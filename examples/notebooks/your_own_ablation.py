# %% [markdown]
# # Is W_query needed? Your own ablation
#
# This notebook trains two forms of attention with the same seeds, and compares their difference
# with its noise. The sizes are so small that the cell takes a minute, and the answer means little.
# For a real answer, change `SETTINGS`: `mlx-attn compare --help` shows defaults that are enough.

# %%
import mlx_attn
from mlx_attn.training.events import Stepped

SETTINGS = {"preset": "nano", "steps": 30, "batch_size": 4, "emb_dim": 32, "n_heads": 2}

# %% [markdown]
# ## One training, event by event
#
# Every process that `compare` starts imports this file again if you run it as a script. So all code
# that trains is under `if __name__ == "__main__"`. In a notebook this changes nothing.

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
    print(model.generate("One rainy day", max_tokens=30, temp=0.7, seed=1))

# %% [markdown]
# ## Two forms, several seeds, one answer
#
# `compare` also trains the reference without scores, to measure the worth of queries and keys on
# this text. A form that gives away more than half of it is not "the same".

# %%
if __name__ == "__main__":
    result = mlx_attn.compare(
        "standard", "no-query", out="runs/is-w-query-needed", seeds=2, tune=False, **SETTINGS
    )
    print(result)
