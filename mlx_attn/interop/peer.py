"""Another program computes a model that was written: run by path, in a process of its own.

    python -I peer.py READER PATH QUESTION.npz ANSWER.npz

QUESTION holds `tokens`, whose logits are asked for, and `greedy`, a prompt and as many tokens after
it. It imports nothing of this package, so that what it says of a folder holds without it.
"""

import runpy
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

_Answer = tuple[np.ndarray, list[int], str]


def _continue(logits: Callable[[list[int]], np.ndarray], prompt: list[int], count: int) -> Any:
    """The likeliest tokens after a prompt, everything computed anew for each."""
    tokens = [*prompt]
    for _ in range(count):
        tokens.append(int(logits(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def with_mlx(path: Path, tokens: np.ndarray, prompt: list[int], count: int) -> _Answer:
    """The shipped model.py with MLX alone."""
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

    cache, greedy, following = [Rows() for _ in model.layers], [], prompt
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
        # Its reader leaves both at the values of GPT-2 small, whatever the file says.
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


READERS = {
    "mlx": with_mlx,
    "mlx-lm": with_mlx_lm,
    "transformers": with_transformers,
    "transformer-lens": with_transformer_lens,
    "llama.cpp": with_llama_cpp,
}


if __name__ == "__main__":
    reader, place, question, answer = sys.argv[1:]
    asked = np.load(question)
    prompt, count = asked["prompt"].tolist(), int(asked["count"])
    logits, greedy, by = READERS[reader](Path(place), asked["tokens"], prompt, count)
    np.savez(answer, logits=logits, greedy=np.array(greedy, np.int64), by=np.array(by))
