"""Another program computes a model that was written: run by path, in a process of its own.

    python -I peer.py READER PATH QUESTION.npz ANSWER.npz

QUESTION holds `tokens`, whose logits are asked for, a `prompt`, the `count` of greedy tokens after
it, perhaps a `text` whose token ids are asked for, and what a reader must be told beside. This file
imports nothing of this package, so that what it finds in a folder holds without it.
"""

import re
import runpy
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

_Answer = tuple[np.ndarray, list[int], str]


def _continue(logits: Callable[[list[int]], np.ndarray], prompt: list[int], count: int) -> Any:
    """Return the likeliest tokens after a prompt, everything computed anew for each."""
    tokens = [*prompt]
    for _ in range(count):
        tokens.append(int(logits(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def with_mlx(path: Path, tokens: np.ndarray, prompt: list[int], count: int) -> _Answer:
    """Run the shipped model.py with only MLX."""
    import json

    import mlx.core as mx

    made = runpy.run_path(str(path / "model.py"))
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    model = made["Model"](made["ModelArgs"].from_dict(config))
    model.load_weights(str(path / "model.safetensors"))
    model.eval()

    class Rows:
        """What mlx-lm's cache of a layer does, where mlx-lm is not installed."""

        offset = 0

        def update_and_fetch(self, rows: mx.array, nothing: mx.array) -> tuple[mx.array, mx.array]:
            self.rows = mx.concatenate([self.rows, rows], axis=2) if self.offset else rows
            self.offset = self.rows.shape[2]
            return self.rows, nothing

    def logits(ids: Iterable[int], cache: list[Rows] | None = None) -> np.ndarray:
        given = mx.array([int(token) for token in ids])
        return np.array(model(given[None], cache)[0].astype(mx.float32))

    cache, greedy, following = [Rows() for _ in range(config["cached_layers"])], [], prompt
    while len(greedy) < count:
        greedy.append(int(logits(following, cache)[-1].argmax()))
        following = greedy[-1:]
    return logits(tokens), greedy, "its own model.py, by MLX"


def with_mlx_lm(path: Path, tokens: np.ndarray, prompt: list[int], count: int) -> _Answer:
    """mlx-lm: its loader, its cache."""
    import mlx.core as mx
    import mlx_lm  # pyright: ignore[reportMissingImports]
    from mlx_lm.generate import generate_step  # pyright: ignore[reportMissingImports]

    model, _ = mlx_lm.utils.load_model(path, trust_remote_code=True)
    logits = np.array(model(mx.array(tokens)[None])[0].astype(mx.float32))
    steps = generate_step(mx.array(prompt), model, max_tokens=count)
    greedy = [int(token) for token, _ in islice(steps, count)]
    return logits, greedy, f"mlx-lm {mlx_lm.__version__}"


def with_transformers(path: Path, tokens: np.ndarray, prompt: list[int], count: int) -> _Answer:
    """transformers: a folder, or a GGUF file that it reads itself."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    transformers.logging.set_verbosity_error()
    kind = transformers.AutoModelForCausalLM
    where: dict[str, Any] = {"trust_remote_code": True}
    if path.is_file():
        where, path = {"gguf_file": path.name}, path.parent
        config = transformers.AutoConfig.from_pretrained(path, **where)
        # Its reader ignores both values of the file and takes GPT-2 small's.
        config.n_positions, config.n_inner = config.n_ctx, config.feed_forward_length
        where["config"] = config
    model = kind.from_pretrained(path, dtype=torch.float32, **where).eval()
    with torch.no_grad():
        logits = model(torch.tensor(tokens)[None].long()).logits[0].numpy()
        given = torch.tensor(prompt)[None].long()
        made = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=max(count, 1),
            min_new_tokens=max(count, 1),
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
    greedy = made[0, len(prompt) :][:count].tolist()
    return logits, greedy, f"transformers {transformers.__version__}"


def with_transformer_lens(path: Path, tokens: np.ndarray, prompt: list[int], count: int) -> _Answer:
    """TransformerLens: a HookedTransformer (before 4.0), or its bridge over a folder of GPT-2."""
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

    def logits(ids: Iterable[int]) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor([[int(token) for token in ids]]))[0].numpy()

    greedy = _continue(logits, prompt, count)
    return logits(tokens), greedy, f"TransformerLens {version('transformer-lens')}"


def with_llama_cpp(path: Path, tokens: np.ndarray, prompt: list[int], count: int) -> _Answer:
    """llama.cpp by its Python binding, keys and values kept in float32."""
    import llama_cpp  # pyright: ignore[reportMissingImports]

    float32: Any = 0  # GGML_TYPE_F32; by default it keeps float16
    model = llama_cpp.Llama(
        str(path), n_ctx=0, logits_all=True, type_k=float32, type_v=float32, verbose=False
    )

    def logits(ids: Iterable[int]) -> np.ndarray:
        given = [int(token) for token in ids]
        model.reset()
        model.eval(given)
        return np.array(model.scores[: len(given)])

    greedy = _continue(logits, prompt, count)
    return logits(tokens), greedy, f"llama.cpp (llama-cpp-python {llama_cpp.__version__})"


class _BookModel:
    """The book's GPTModel (chapter 4) as formulas over a state dict, whichever way that spells it.

    Its classes are the reader's own and in no package, so that this takes their place.
    """

    def __init__(self, weights: dict[str, Any], n_heads: int, lora_alpha: float):
        self.weights, self.n_heads, self.lora_alpha = weights, n_heads, lora_alpha

    def has(self, name: str) -> bool:
        """Return True if the module exists."""
        return any(key.startswith(f"{name}.") for key in self.weights)

    def linear(self, x: Any, name: str) -> Any:
        """Return a linear layer, x W^T + b, and with LoRA (appendix E) alpha x A B more."""
        if f"{name}.lora.A" not in self.weights:
            y = x @ self.weights[f"{name}.weight"].T
            return y + self.weights.get(f"{name}.bias", 0)
        A, B = self.weights[f"{name}.lora.A"], self.weights[f"{name}.lora.B"]
        return self.linear(x, f"{name}.linear") + self.lora_alpha * (x @ A @ B)

    def norm(self, x: Any, name: str) -> Any:
        """LayerNorm, by the book's names or by PyTorch's."""
        scale, shift = (
            self.weights.get(f"{name}.{own}", self.weights.get(f"{name}.{stock}"))
            for own, stock in (("scale", "weight"), ("shift", "bias"))
        )
        centred = x - x.mean(-1, keepdim=True)
        return scale * centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() + shift

    def attention(self, x: Any, name: str) -> Any:
        """Causal attention; query, key and value by a matrix each or by one."""
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
    """PyTorch: its loader, restricted to weights, and the book's formulas over what that read."""
    import torch  # pyright: ignore[reportMissingImports]

    if path.suffix == ".safetensors":
        from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]

        held = load_file(path)
    else:
        held = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    held = held.get("model_state_dict", held)
    weights = {re.sub(r"^(_orig_mod|module)\.", "", key): held[key].float() for key in held}
    weights.setdefault("out_head.weight", weights["tok_emb.weight"])
    model = _BookModel(weights, n_heads, lora_alpha)

    def logits(ids: Iterable[int]) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor([int(token) for token in ids])).numpy()

    by = f"PyTorch {torch.__version__} and the book's formulas"
    return logits(tokens), _continue(logits, prompt, count), by


READERS: dict[str, Callable[..., _Answer]] = {
    "torch": with_torch,
    "mlx": with_mlx,
    "mlx-lm": with_mlx_lm,
    "transformers": with_transformers,
    "transformer-lens": with_transformer_lens,
    "llama.cpp": with_llama_cpp,
}


def _ids_by_transformers(path: Path, text: str) -> list[int]:
    from transformers import AutoTokenizer  # pyright: ignore[reportMissingImports]

    return AutoTokenizer.from_pretrained(path).encode(text)


def _ids_by_mlx_lm(path: Path, text: str) -> list[int]:
    from mlx_lm.utils import load_tokenizer  # pyright: ignore[reportMissingImports]

    return load_tokenizer(path).encode(text)


TOKENIZERS: dict[str, Callable[[Path, str], list[int]]] = {
    "transformers": _ids_by_transformers,
    "mlx-lm": _ids_by_mlx_lm,
}
"""Readers that also load the tokenizer of a folder."""


def text_ids(reader: str, path: Path, text: str) -> dict[str, Any]:
    """Return the ids of a text by a program's own tokenizer, or the reason that it lacks one."""
    try:
        return {"ids": np.array(TOKENIZERS[reader](path, text), np.int64)}
    except Exception as error:  # whatever another program raises
        return {"ids_error": np.array(f"{type(error).__name__}: {error}".splitlines()[0])}


if __name__ == "__main__":
    reader, place, question, answer = sys.argv[1:]
    asked = np.load(question)
    facts = {key: asked[key].tolist() for key in asked.files}
    facts["tokens"], text = asked["tokens"], facts.pop("text", "")
    logits, greedy, by = READERS[reader](Path(place), **facts)
    told = {"logits": logits, "greedy": np.array(greedy, np.int64), "by": np.array(by)}
    np.savez(answer, **told, **(text_ids(reader, Path(place), text) if text else {}))
