"""mlx-lm, transformers and PyTorch read what export writes; a .pth of PyTorch is read.

    MLX_ATTN_PEERS_PYTHON=/path/to/python pytest -m slow tests/interop/test_peers.py

names a Python that has them: `pip install mlx-lm transformers torch`, and mlx_attn.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_attn
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.interop.targets import TARGETS, export_run
from mlx_attn.plugins import load_plugins, unload_plugins
from mlx_attn.sampling.config import SamplerConfig

from .conftest import TEXT

PYTHON = os.environ.get("MLX_ATTN_PEERS_PYTHON", sys.executable)
CLONE = Path(mlx_attn.__file__).parents[1]
HAS = "import sys; from importlib.util import find_spec as f; "
HAS += "sys.exit(None in map(f, ('mlx_lm', 'transformers', 'torch')))"


def has_peers() -> bool:
    return subprocess.run([PYTHON, "-c", HAS], check=False).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_peers(), reason=f"{PYTHON} lacks mlx-lm, transformers or torch"),
]

MLX_LM = """
import json, sys
import mlx_lm
from mlx_lm.sample_utils import make_sampler
prompts = json.loads(sys.argv[2])
model, tokenizer = mlx_lm.load(sys.argv[1], tokenizer_config={}, trust_remote_code=True)
ids = [tokenizer.encode(prompt) for prompt in prompts]
alone = [mlx_lm.generate(model, tokenizer, i, max_tokens=20) for i in ids]
batch = mlx_lm.batch_generate(model, tokenizer, ids, max_tokens=20, return_token_ids=True)
print(json.dumps({"ids": ids, "alone": alone, "batch": batch.token_ids}))
"""
TRANSFORMERS = """
import json, sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
ids = tokenizer.encode(json.loads(sys.argv[2]))
print(json.dumps({"ids": ids, "logits": model(torch.tensor([ids])).logits[0].tolist()}))
"""
PTH = """
import json, sys, torch
from pathlib import Path
from safetensors.torch import load_file
from mlx_attn.interop.checkpoints import read_checkpoint
import mlx.core as mx
folder = Path(sys.argv[1])
state = load_file(folder / "model.safetensors")
torch.save({"model_state_dict": state, "optimizer_state_dict": {}}, folder / "model.pth")
model = read_checkpoint(folder / "model.pth", n_heads=4).model
print(json.dumps(model(mx.array([[5, 1, 30, 7]]))[0].tolist()))
"""


def answer(program: str, *arguments: str) -> Any:
    """Run a program in the Python with mlx-lm, transformers and torch, and read its output."""
    told = subprocess.run(
        [PYTHON, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(CLONE), "HF_HUB_OFFLINE": "1"},
    )
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout.splitlines()[-1])


FORMS: dict[str, Callable[[], dict[str, Any]]] = {
    "GPT-2": lambda: {"tied_head": True, "output": "none"},
    "merged": lambda: {"score": "merged", "position": "alibi"},
    "a recurrent state": lambda: VARIANTS["gated-deltanet"].settings,
    "a window": lambda: {"position": "rope", "window": 5},
    "a plugin": lambda: VARIANTS["talk"].settings,
    "characters": lambda: {"kind": "char", "tied_head": True},  # mlx-lm reads letters of its own
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_mlx_lm_writes_the_text_that_sampling_writes_alone_and_in_a_batch(form, make_run, out):
    load_plugins(CLONE / "examples" / "talking_heads.py")
    loaded, prompts = make_run(**{"kind": "bpe", **form()}), ["It jumps over", "fox"]
    streams = [loaded.stream(prompt, SamplerConfig(temp=0.0), 20) for prompt in prompts]
    # mlx-lm stops at the end token, the byte 0, which a model with random weights may write.
    ours = [[*takewhile(lambda step: step.text != "\0", steps)] for steps in streams]
    export_run(loaded, TARGETS["mlx-lm"], out)
    unload_plugins()
    theirs = answer(MLX_LM, str(out), json.dumps(prompts))
    assert theirs["ids"] == [loaded.tokenizer.encode(prompt).tolist() for prompt in prompts]
    assert theirs["alone"] == ["".join(step.text for step in steps) for steps in ours]
    assert theirs["batch"] == [[step.token for step in steps] for steps in ours]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte", "gpt2"])
def test_transformers_computes_the_logits_and_the_ids_of_a_gpt2_folder(kind, make_run, out):
    loaded, text = make_run(kind, output="none"), TEXT[:20]
    export_run(loaded, TARGETS["gpt2"], out)
    theirs, ids = answer(TRANSFORMERS, str(out), json.dumps(text)), loaded.tokenizer.encode(text)
    assert theirs["ids"] == ids.tolist()
    logits = np.array(loaded.model(mx.array(ids[None])))[0]
    assert np.abs(logits - theirs["logits"]).max() < 1e-4 * np.abs(logits).max()


def test_a_pth_of_pytorch_is_read(make_run, out):
    loaded = make_run("byte", qkv_bias=True)
    export_run(loaded, TARGETS["book"], out)
    logits = np.array(loaded.model(mx.array([[5, 1, 30, 7]])))[0]
    assert np.allclose(logits, np.array(answer(PTH, str(out))), atol=1e-4)
