# %% [markdown]
# # Looking into GPT-2
#
# Import it first: `mlx-attn import gpt2 --out runs/gpt2` (a download of 550 MB, with the extra
# `hub`), or a folder of yours. Then this notebook reads the run; RUN in the environment names
# another one.

# %%
import os

import numpy as np

import mlx_attn

model = mlx_attn.load(os.environ.get("RUN", "runs/gpt2"))
TEXT = "When Mary and John went to the store, John gave a drink to"
model

# %% [markdown]
# ## What comes next

# %%
logits = model.logits(TEXT)[-1]
likeliest = np.argsort(-logits)[:5]
for token in likeliest.tolist():
    print(f"{logits[token]:7.2f}  {model.tokenizer.decode([token])!r}")

# %% [markdown]
# ## Where every head looks
#
# Rows are tokens that read, columns those that are read. A head that looks one token back is a
# diagonal.

# %%
maps = model.attention(TEXT)
previous = np.diagonal(maps.weights, -1, 2, 3).mean(-1)  # (layers, heads)
layer, head = np.unravel_index(previous.argmax(), previous.shape)
print(f"layer {layer}, head {head} looks one token back with weight {previous.max():.2f}")
maps

# %% [markdown]
# ## How many directions a head compares
#
# S_h is a C x C matrix of rank head_dim at most. The sum of its squared singular values in the
# first directions says how many of them it uses.

# %%
S = model.matrices(int(layer)).S[int(head)]
values = np.linalg.svd(S, compute_uv=False)
share = np.cumsum(values**2) / np.sum(values**2)
most = int(np.argmax(share > 0.9)) + 1
print(f"90 % of that head's S lies in {most} of {len(values)} directions")
