"""Run an exported model in another program; this file runs by path, in a process of its own.

    python -I peer.py READER PATH QUESTION.npz ANSWER.npz

QUESTION holds `tokens`, whose logits are computed, a `prompt`, the `count` of greedy tokens after
it, perhaps a `text` to encode, and further arguments of the reader. This file does not import this
package, so it proves that an exported folder works without it.
"""

import re
import runpy
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

_Answer = tuple[np.ndarray, list[int], str]


def _answer(
    logits: Callable[[list[int]], np.ndarray],
    tokens: np.ndarray,
    prompt: list[int],
    count: int,
    by: str,
) -> _Answer:
    """Return the logits of the tokens, and the likeliest tokens after a prompt, without a cache."""
    ids = [*prompt]
    for _ in range(count):
        ids.append(int(logits(ids)[-1].argmax()))
    return logits(tokens.tolist()), ids[len(prompt) :], by


def with_mlx(path: Path, tokens: np.ndarray, prompt: list[int], count: int) -> _Answer:
    """Run the exported model.py with only MLX."""
    import json

    import mlx.core as mx

    module = runpy.run_path(str(path / "model.py"))
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    model = module["Model"](module["ModelArgs"].from_dict(config))
    model.load_weights(str(path / "model.safetensors"))
    model.eval()

    class Rows:
        """A layer's cache with the interface of mlx-lm, which may not be installed."""

        offset = 0

        def update_and_fetch(self, rows: mx.array, nothing: mx.array) -> tuple[mx.array, mx.array]:
            self.rows = mx.concatenate([self.rows, rows], axis=2) if self.offset else rows
            self.offset = self.rows.shape[2]
            return self.rows, nothing

    def logits(ids: list[int], cache: list[Rows] | None = None) -> np.ndarray:
        return np.array(model(mx.array([ids]), cache)[0].astype(mx.float32))

    cache, greedy, following = [Rows() for _ in range(config["cached_layers"])], [], prompt
    while len(greedy) < count:
        greedy.append(int(logits(following, cache)[-1].argmax()))
        following = greedy[-1:]
    return logits(tokens.tolist()), greedy, "its own model.py, by MLX"


def with_mlx_lm(path: Path, tokens: np.ndarray, prompt: list[int], count: int) -> _Answer:
    """Run mlx-lm with its own loader and cache."""
    import mlx.core as mx
    import mlx_lm  # pyright: ignore[reportMissingImports]
    from mlx_lm.generate import generate_step  # pyright: ignore[reportMissingImports]

    model, _ = mlx_lm.utils.load_model(path, trust_remote_code=True)
    logits = np.array(model(mx.array(tokens)[None])[0].astype(mx.float32))
    steps = generate_step(mx.array(prompt), model, max_tokens=count)
    greedy = [int(token) for token, _ in islice(steps, count)]
    return logits, greedy, f"mlx-lm {mlx_lm.__version__}"


def with_transformers(path: Path, tokens: np.ndarray, prompt: list[int], count: int) -> _Answer:
    """Run transformers on a folder, or on a GGUF file that it reads itself."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    transformers.logging.set_verbosity_error()
    kind = transformers.AutoModelForCausalLM
    where: dict[str, Any] = {"trust_remote_code": True}
    if path.is_file():
        where, path = {"gguf_file": path.name}, path.parent
        config = transformers.AutoConfig.from_pretrained(path, **where)
        # Its reader ignores both keys of the file and keeps the values of GPT-2 small.
        config.n_positions, config.n_inner = config.n_ctx, config.feed_forward_length
        where["config"] = config
    model = kind.from_pretrained(path, dtype=torch.float32, **where).eval()
    with torch.no_grad():
        logits = model(torch.tensor(tokens)[None].long()).logits[0].numpy()
        ids = torch.tensor(prompt)[None].long()
        continued = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max(count, 1),
            min_new_tokens=max(count, 1),
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
    greedy = continued[0, len(prompt) :][:count].tolist()
    return logits, greedy, f"transformers {transformers.__version__}"


def with_transformer_lens(path: Path, tokens: np.ndarray, prompt: list[int], count: int) -> _Answer:
    """Run TransformerLens: a HookedTransformer (before 4.0), or its bridge to a GPT-2 folder."""
    import json
    from importlib.metadata import version

    import torch  # pyright: ignore[reportMissingImports]
    from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]

    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    if "d_model" in config:
        from transformer_lens import HookedTransformer  # pyright: ignore[reportMissingImports]

        more = ("dtype", "eos_token_id")
        model = HookedTransformer({key: config[key] for key in config if key not in more})
        model.load_state_dict(load_file(path / "model.safetensors"), strict=False)
    else:
        from transformer_lens.model_bridge import (  # pyright: ignore[reportMissingImports]
            TransformerBridge,
        )

        model = TransformerBridge.boot_transformers(str(path), device="cpu")
    model.eval()

    def logits(ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor([ids]))[0].numpy()

    return _answer(logits, tokens, prompt, count, f"TransformerLens {version('transformer-lens')}")


def with_llama_cpp(path: Path, tokens: np.ndarray, prompt: list[int], count: int) -> _Answer:
    """Run llama.cpp through its Python binding, with keys and values in float32."""
    import llama_cpp  # pyright: ignore[reportMissingImports]

    float32: Any = 0  # GGML_TYPE_F32; by default it keeps float16
    model = llama_cpp.Llama(
        str(path), n_ctx=0, logits_all=True, type_k=float32, type_v=float32, verbose=False
    )

    def logits(ids: list[int]) -> np.ndarray:
        model.reset()
        model.eval(ids)
        return np.array(model.scores[: len(ids)])

    by = f"llama.cpp (llama-cpp-python {llama_cpp.__version__})"
    return _answer(logits, tokens, prompt, count, by)


class _BookModel:
    """The book's GPTModel (chapter 4) as formulas over a state dict, in any of its spellings.

    No package has the book's classes, so this class replaces them.
    """

    def __init__(self, weights: dict[str, Any], n_heads: int, lora_alpha: float):
        self.weights, self.n_heads, self.lora_alpha = weights, n_heads, lora_alpha

    def has(self, name: str) -> bool:
        """Return True if the state dict has a module of that name."""
        return any(key.startswith(f"{name}.") for key in self.weights)

    def linear(self, x: Any, name: str) -> Any:
        """Apply a linear layer, x W^T + b; with LoRA (appendix E), add alpha x A B."""
        if f"{name}.lora.A" not in self.weights:
            y = x @ self.weights[f"{name}.weight"].T
            return y + self.weights.get(f"{name}.bias", 0)
        A, B = self.weights[f"{name}.lora.A"], self.weights[f"{name}.lora.B"]
        return self.linear(x, f"{name}.linear") + self.lora_alpha * (x @ A @ B)

    def norm(self, x: Any, name: str) -> Any:
        """Apply LayerNorm, under the book's names or PyTorch's."""
        parts = ("scale", "shift") if f"{name}.scale" in self.weights else ("weight", "bias")
        scale, shift = (self.weights[f"{name}.{part}"] for part in parts)
        centred = x - x.mean(-1, keepdim=True)
        return scale * centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() + shift

    def attention(self, x: Any, name: str) -> Any:
        """Apply causal attention; query, key and value have a matrix each, or share one."""
        if self.has(f"{name}.qkv"):
            three = self.linear(x, f"{name}.qkv").chunk(3, dim=-1)
        else:
            three = [self.linear(x, f"{name}.W_{word}") for word in ("query", "key", "value")]
        T, C = x.shape
        q, k, v = (y.reshape(T, self.n_heads, -1).transpose(0, 1) for y in three)
        scores = q @ k.transpose(1, 2) / k.shape[-1] ** 0.5
        ahead = scores.new_ones(T, T).triu(1).bool()
        mixed = scores.masked_fill(ahead, -float("inf")).softmax(-1) @ v
        output = "out_proj" if self.has(f"{name}.out_proj") else "proj"
        return self.linear(mixed.transpose(0, 1).reshape(T, C), f"{name}.{output}")

    def __call__(self, ids: Any) -> Any:
        """Return the logits of one sequence."""
        from torch.nn.functional import gelu  # pyright: ignore[reportMissingImports]

        x = self.weights["tok_emb.weight"][ids] + self.weights["pos_emb.weight"][: len(ids)]
        blocks = {key.split(".")[1] for key in self.weights if key.startswith("trf_blocks.")}
        for block in (f"trf_blocks.{i}" for i in sorted(blocks, key=int)):
            x = x + self.attention(self.norm(x, f"{block}.norm1"), f"{block}.att")
            hidden = self.linear(self.norm(x, f"{block}.norm2"), f"{block}.ff.layers.0")
            x = x + self.linear(gelu(hidden, approximate="tanh"), f"{block}.ff.layers.2")
        return self.linear(self.norm(x, "final_norm"), "out_head")


def with_torch(
    path: Path,
    tokens: np.ndarray,
    prompt: list[int],
    count: int,
    n_heads: int = 1,
    lora_alpha: float = 1.0,
) -> _Answer:
    """Run PyTorch: its loader, restricted to weights, and the book's formulas."""
    import torch  # pyright: ignore[reportMissingImports]

    if path.suffix == ".safetensors":
        from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]

        content = load_file(path)
    else:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    state = content.get("model_state_dict", content)
    weights = {re.sub(r"^(_orig_mod|module)\.", "", key): state[key].float() for key in state}
    weights.setdefault("out_head.weight", weights["tok_emb.weight"])
    model = _BookModel(weights, n_heads, lora_alpha)

    def logits(ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor(ids)).numpy()

    by = f"PyTorch {torch.__version__} and the book's formulas"
    return _answer(logits, tokens, prompt, count, by)


READERS: dict[str, Callable[..., _Answer]] = {
    "torch": with_torch,
    "mlx": with_mlx,
    "mlx-lm": with_mlx_lm,
    "transformers": with_transformers,
    "transformer-lens": with_transformer_lens,
    "llama.cpp": with_llama_cpp,
}


TOKENIZERS = ("transformers", "mlx-lm")
"""Readers that also load the tokenizer of a folder."""


def text_ids(reader: str, path: Path, text: str) -> dict[str, Any]:
    """Encode a text with a program's own tokenizer; return the ids or the error."""
    try:
        if reader == "mlx-lm":
            from mlx_lm.utils import load_tokenizer  # pyright: ignore[reportMissingImports]

            tokenizer = load_tokenizer(path)
        else:
            from transformers import AutoTokenizer  # pyright: ignore[reportMissingImports]

            tokenizer = AutoTokenizer.from_pretrained(path)
        return {"ids": np.array(tokenizer.encode(text), np.int64)}
    except Exception as error:  # whatever another program raises
        return {"ids_error": np.array(f"{type(error).__name__}: {error}".splitlines()[0])}


if __name__ == "__main__":
    reader, place, question, answer = sys.argv[1:]
    asked = np.load(question)
    facts = {key: asked[key].tolist() for key in asked.files}
    facts["tokens"], text = asked["tokens"], facts.pop("text", "")
    logits, greedy, by = READERS[reader](Path(place), **facts)
    reply = {"logits": logits, "greedy": np.array(greedy, np.int64), "by": np.array(by)}
    np.savez(answer, **reply, **(text_ids(reader, Path(place), text) if text else {}))
