"""Run an exported model in another program; this file runs by path, in a process of its own.

    python -I peer.py READER PATH QUESTION.npz ANSWER.npz

QUESTION holds `tokens`, whose logits are computed, a `prompt`, the `count` of greedy tokens after
it, a `text` to encode ("": none), and further arguments of the reader. This file does not import
this package, so it proves that an exported folder works without it.
"""

import json
import re
import runpy
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class _Loaded(NamedTuple):
    """A model that another program loaded."""

    by: str  # the program, with its version
    logits: Callable[[list[int]], np.ndarray]  # of a sequence: [T, V]
    # The program's own greedy decoding, with its cache; None: repeated calls of `logits`.
    greedy: Callable[[list[int], int], list[int]] | None = None


def _config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def _with_mlx(path: Path) -> _Loaded:
    """Run the exported model.py with only MLX."""
    import mlx.core as mx

    module, config = runpy.run_path(str(path / "model.py")), _config(path)
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

    def greedy(prompt: list[int], count: int) -> list[int]:
        cache, tokens, following = [Rows() for _ in range(config["cached_layers"])], [], prompt
        while len(tokens) < count:
            tokens.append(int(logits(following, cache)[-1].argmax()))
            following = tokens[-1:]
        return tokens

    return _Loaded("its own model.py, by MLX", logits, greedy)


def _with_mlx_lm(path: Path) -> _Loaded:
    """Run mlx-lm with its own loader and cache."""
    import mlx.core as mx
    import mlx_lm  # pyright: ignore[reportMissingImports]
    from mlx_lm.generate import generate_step  # pyright: ignore[reportMissingImports]

    model, _ = mlx_lm.utils.load_model(path, trust_remote_code=True)

    def logits(ids: list[int]) -> np.ndarray:
        return np.array(model(mx.array(ids)[None])[0].astype(mx.float32))

    def greedy(prompt: list[int], count: int) -> list[int]:
        steps = generate_step(mx.array(prompt), model, max_tokens=count)
        return [int(token) for token, _ in islice(steps, count)]

    return _Loaded(f"mlx-lm {mlx_lm.__version__}", logits, greedy)


def _with_transformers(path: Path) -> _Loaded:
    """Run transformers on a folder, or on a GGUF file that it reads itself."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    transformers.logging.set_verbosity_error()
    where: dict[str, Any] = {"trust_remote_code": True}
    if path.is_file():
        where, path = {"gguf_file": path.name}, path.parent
        config = transformers.AutoConfig.from_pretrained(path, **where)
        # Its reader ignores both keys of the file and keeps the values of GPT-2 small.
        config.n_positions, config.n_inner = config.n_ctx, config.feed_forward_length
        where["config"] = config
    kind = transformers.AutoModelForCausalLM
    model = kind.from_pretrained(path, dtype=torch.float32, **where).eval()

    def logits(ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0].numpy()

    def greedy(prompt: list[int], count: int) -> list[int]:
        ids = torch.tensor([prompt])
        continued = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max(count, 1),
            min_new_tokens=max(count, 1),
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        return continued[0, len(prompt) :][:count].tolist()

    return _Loaded(f"transformers {transformers.__version__}", logits, greedy)


def _with_transformer_lens(path: Path) -> _Loaded:
    """Run TransformerLens: a HookedTransformer (before 4.0), or its bridge to a GPT-2 folder."""
    from importlib.metadata import version

    import torch  # pyright: ignore[reportMissingImports]
    from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]

    config = _config(path)
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

    return _Loaded(f"TransformerLens {version('transformer-lens')}", logits)


def _with_llama_cpp(path: Path) -> _Loaded:
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

    return _Loaded(f"llama.cpp (llama-cpp-python {llama_cpp.__version__})", logits)


def _with_torch(path: Path, n_heads: int = 1, lora_alpha: float = 1.0) -> _Loaded:
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
    by = f"PyTorch {torch.__version__} and the book's formulas"
    return _Loaded(by, _book_model(weights, n_heads, lora_alpha))


def _book_model(
    weights: dict[str, Any], n_heads: int, lora_alpha: float
) -> Callable[[list[int]], np.ndarray]:
    """Return the book's GPTModel (chapter 4), over a state dict in any of its spellings.

    No package has the book's classes.
    """
    import torch.nn.functional as F  # pyright: ignore[reportMissingImports]

    n_layers = len({key.split(".")[1] for key in weights if key.startswith("trf_blocks.")})

    def linear(x: Any, name: str) -> Any:
        """Return x W^T + b; with LoRA (appendix E), add alpha x A B."""
        if f"{name}.lora.A" not in weights:
            return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))
        A, B = weights[f"{name}.lora.A"], weights[f"{name}.lora.B"]
        return linear(x, f"{name}.linear") + lora_alpha * (x @ A @ B)

    def norm(x: Any, name: str) -> Any:
        """Apply LayerNorm, under the book's names or PyTorch's."""
        parts = ("scale", "shift") if f"{name}.scale" in weights else ("weight", "bias")
        return F.layer_norm(x, x.shape[-1:], *(weights[f"{name}.{part}"] for part in parts))

    def attention(x: Any, name: str) -> Any:
        """Apply causal attention; query, key and value have a matrix each, or share one."""
        modules = {key.removeprefix(f"{name}.").split(".")[0] for key in weights}
        if "qkv" in modules:
            three = linear(x, f"{name}.qkv").chunk(3, dim=-1)
        else:
            three = [linear(x, f"{name}.W_{word}") for word in ("query", "key", "value")]
        q, k, v = (y.reshape(len(x), n_heads, -1).transpose(0, 1)[None] for y in three)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)[0]
        output = "out_proj" if "out_proj" in modules else "proj"
        return linear(mixed.transpose(0, 1).reshape(x.shape), f"{name}.{output}")

    def logits(ids: list[int]) -> np.ndarray:
        x = weights["tok_emb.weight"][ids] + weights["pos_emb.weight"][: len(ids)]
        for block in (f"trf_blocks.{i}" for i in range(n_layers)):
            x = x + attention(norm(x, f"{block}.norm1"), f"{block}.att")
            hidden = linear(norm(x, f"{block}.norm2"), f"{block}.ff.layers.0")
            x = x + linear(F.gelu(hidden, approximate="tanh"), f"{block}.ff.layers.2")
        return linear(norm(x, "final_norm"), "out_head").detach().numpy()

    return logits


READERS: dict[str, Callable[..., _Loaded]] = {
    "torch": _with_torch,
    "mlx": _with_mlx,
    "mlx-lm": _with_mlx_lm,
    "transformers": _with_transformers,
    "transformer-lens": _with_transformer_lens,
    "llama.cpp": _with_llama_cpp,
}


TOKENIZERS = ("transformers", "mlx-lm")
"""Readers that also load the tokenizer of a folder."""


def _text_ids(reader: str, path: Path, text: str) -> dict[str, Any]:
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


def _likeliest(
    logits: Callable[[list[int]], np.ndarray], prompt: list[int], count: int
) -> list[int]:
    """Return the greedy tokens after a prompt, without a cache."""
    ids = [*prompt]
    for _ in range(count):
        ids.append(int(logits(ids)[-1].argmax()))
    return ids[len(prompt) :]


def _main(reader: str, place: str, question: str, answer: str) -> None:
    asked = np.load(question)
    facts = {key: asked[key].tolist() for key in asked.files}
    tokens, prompt, count, text = (facts.pop(k) for k in ("tokens", "prompt", "count", "text"))
    loaded = READERS[reader](Path(place), **facts)
    decode = loaded.greedy or (lambda prompt, count: _likeliest(loaded.logits, prompt, count))
    greedy = np.array(decode(prompt, count), np.int64)
    ids = _text_ids(reader, Path(place), text) if text else {}
    np.savez(answer, logits=loaded.logits(tokens), greedy=greedy, by=np.array(loaded.by), **ids)


if __name__ == "__main__":
    _main(*sys.argv[1:])
