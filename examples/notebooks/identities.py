# %% [markdown]
# # Three identities of attention, by hand
#
# A notebook in the percent format: open it in VS Code, or with `jupytext --to notebook`, or run it
# as a script. It trains nothing. Every claim is an equation, and the last line of each cell
# checks it.

# %%
# isort: off
from mlx_attn.attention import MultiHeadAttention  # before MLX, because it loads a fast BLAS
from mlx_attn.convert.circuits import ov_circuit, qk_circuit
import mlx.core as mx
import numpy as np

C, T, H = 16, 6, 4
mx.random.seed(1)
x = mx.random.normal((1, T, C))
attention = MultiHeadAttention(C, C, context_length=T, dropout=0.0, num_heads=H)
attention.eval()

# %% [markdown]
# ## W_query and W_key act only through their product
#
# The score of head h is `x_i W_query_h (x_j W_key_h)^T = x_i S_h x_j^T` with `S_h = W_query_h
# W_key_h^T`. The analysis computes S_h of every head, and S_h gives the same scores as the layer.

# %%
S = qk_circuit(attention).products  # (H, C, C)
rows = np.array(x[0])
scores = np.einsum("ic,hcd,jd->hij", rows, S, rows) / np.sqrt(C // H)
mask = np.triu(np.full((T, T), -np.inf), 1)
weights = np.exp(scores + mask)
weights /= weights.sum(-1, keepdims=True)
assert np.allclose(weights, np.array(attention.weights(x))[0], atol=1e-5)

# %% [markdown]
# ## W_value and out_proj act only through their product
#
# `y_i = sum_h sum_j weights_h(i, j) x_j (V_h O_h)`: the layer adds up the heads. Concatenating them
# is only bookkeeping.

# %%
VO = ov_circuit(attention)
y = np.einsum("hij,jc,hcd->id", weights, rows, VO.products) + VO.total_constant
assert np.allclose(y, np.array(attention(x))[0], atol=1e-5)

# %% [markdown]
# ## The same weights, split into other heads, compute another function
#
# Heads do more than reshape the same computation, because each head has its own softmax. The same
# four matrices give different outputs with one head and with four, even without training.

# %%
one_head = MultiHeadAttention(C, C, context_length=T, dropout=0.0, num_heads=1)
one_head.update(attention.parameters())
one_head.eval()
difference = float(mx.abs(one_head(x) - attention(x)).max())
print(f"largest difference between one head and four, same weights: {difference:.3f}")
assert difference > 0.01
