"""Stock mlx-lm and transformers load folders that were exported: run by path, without our package.

    python -I stock.py FOLDER

For every folder inside FOLDER with a `question.json` (tokens, prompt, count, texts), it writes
`answer.json`: the logits, greedy tokens and ids that each program gives, with its own loaders.
"""

import json
import sys
import traceback
from pathlib import Path
from typing import Any


def _answer(**facts: Any) -> dict[str, Any]:
    return facts


def mlx_lm_says(folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    import mlx.core as mx
    import mlx_lm  # pyright: ignore[reportMissingImports]
    import numpy as np

    trust: dict[str, Any] = {"trust_remote_code": True}
    model, tokenizer = mlx_lm.load(str(folder), **trust)
    logits = np.array(model(mx.array([asked["tokens"]]))[0].astype(mx.float32))
    steps = mlx_lm.stream_generate(model, tokenizer, asked["prompt"], max_tokens=asked["count"])
    steps = list(steps)
    np.save(folder / "mlx-lm.npy", logits)
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in asked["texts"]]
    small = folder / "quantized"
    mlx_lm.convert(str(folder), str(small), quantize=True, q_group_size=32, **trust)
    model, tokenizer = mlx_lm.load(str(small), **trust)
    kinds = {type(module).__name__ for _, module in model.named_modules()}
    written = mlx_lm.generate(model, tokenizer, asked["prompt"], max_tokens=8)
    return _answer(
        greedy=[step.token for step in steps],
        text="".join(step.text for step in steps),
        ids=ids,
        quantized="QuantizedLinear" in kinds,
        written=written,
    )


def transformers_says(folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    import numpy as np
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import (  # pyright: ignore[reportMissingImports]
        AutoModelForCausalLM,
        AutoTokenizer,
    )

    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = model(torch.tensor([asked["tokens"]])).logits[0].numpy()
        prompt = torch.tensor([asked["prompt"]])
        settings: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        made = model.generate(
            prompt,
            max_new_tokens=asked["count"],
            attention_mask=torch.ones_like(prompt),
            **settings,
        )
    np.save(folder / "transformers.npy", logits)
    greedy = made[0, len(asked["prompt"]) :].tolist()
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in asked["texts"]]
    return _answer(greedy=greedy, text=tokenizer.decode(greedy), ids=ids)


def main(place: Path) -> None:
    for question in sorted(place.glob("*/question.json")):
        asked = json.loads(question.read_text(encoding="utf-8"))
        answer = {}
        for name, ask in {"mlx-lm": mlx_lm_says, "transformers": transformers_says}.items():
            try:
                answer[name] = ask(question.parent, asked)
            except Exception:
                answer[name] = {"error": traceback.format_exc()}
        (question.parent / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
