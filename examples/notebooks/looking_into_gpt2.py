# %% [markdown]
# # Looking into GPT-2
#
# Import it first: `mlx-attn import gpt2 --out runs/gpt2` (a download of 550 MB, with the extra
# `hub`), or from your own folder. Then this notebook reads the run. To use another run, set RUN in
# the environment.

# %%
import os

import numpy as np

import mlx_attn

model = mlx_attn.load(os.environ.get("RUN", "runs/gpt2"))
TEXT = "When Mary and John went to the store, John gave a drink to"
model

# %% [markdown]
# ## The next token

# %%
logits = model.logits(TEXT)[-1]
likeliest = np.argsort(-logits)[:5]
for token in likeliest.tolist():
    print(f"{logits[token]:7.2f}  {model.tokenizer.decode([token])!r}")

# %% [markdown]
# ## The attention of every head
#
# The token of a row attends to the tokens of the columns. A head that attends to the previous token
# shows a diagonal.

# %%
maps = model.attention(TEXT)
previous = np.diagonal(maps.weights, -1, 2, 3).mean(-1)  # (layers, heads)
layer, head = np.unravel_index(previous.argmax(), previous.shape)
print(f"layer {layer}, head {head} looks one token back with weight {previous.max():.2f}")
maps

# %% [markdown]
# ## How many directions a head compares
#
# S_h is a C x C matrix of rank at most head_dim. The sum of its squared singular values over the
# first directions shows how many directions it uses.

# %%
S = model.matrices(int(layer)).S[int(head)]
values = np.linalg.svd(S, compute_uv=False)
share = np.cumsum(values**2) / np.sum(values**2)
most = int(np.argmax(share > 0.9)) + 1
print(f"90 % of that head's S lies in {most} of {len(values)} directions")
