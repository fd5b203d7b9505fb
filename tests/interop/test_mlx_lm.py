"""The model that mlx-lm runs, without mlx-lm: its caches give the text that sampling gives."""

import copy
import json
import runpy
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.errors import RunError
from mlx_attn.interop.mlx_lm import Model
from mlx_attn.interop.targets import TARGETS, export_run
from mlx_attn.plugins import load_plugins, unload_plugins

EXAMPLE = Path(__file__).parents[2] / "examples" / "talking_heads.py"
FORMS: dict[str, dict[str, Any]] = {
    "merged with ALiBi": {"score": "merged", "position": "alibi"},
    "rotary positions and a window": {"position": "rope", "window": 5},
    "a recurrent state": VARIANTS["gated-deltanet"].settings,
    "a latent": VARIANTS["mla"].settings,
    "two maps": VARIANTS["differential"].settings,
    "layers in turn": {"pattern": "deltanet,standard"},
}


def model_in(folder: Path) -> Any:
    """The model as mlx-lm makes it."""
    module = runpy.run_path(str(folder / "model.py"))
    keys = json.loads((folder / "config.json").read_text())
    model = module["Model"](module["ModelArgs"].from_dict(keys))
    model.load_weights(str(folder / "model.safetensors"), strict=True)
    model.eval()
    return model


def decoded(model: Any, cache: Any, tokens: list[int], count: int) -> list[int]:
    """Greedy tokens; the prompt is read in two parts, as a long one is."""
    model(mx.array([tokens[:3]]), cache=cache)
    mx.eval([part.state for part in cache])
    following, greedy = tokens[3:], []
    while len(greedy) < count:
        greedy.append(model(mx.array([following]), cache=cache)[0, -1].argmax().item())
        following = greedy[-1:]
    return greedy


PROMPT = [5, 1, 30, 7, 7, 2]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_cache_of_mlx_lm_gives_the_tokens_of_a_full_pass(form, make_run, out):
    loaded = make_run(**form)
    export_run(loaded, TARGETS["mlx-lm"], out)
    model = model_in(out)
    greedy, ids = decoded(model, model.make_cache(), PROMPT, 20), [*PROMPT]
    for _ in range(20):
        ids.append(int(loaded.model(mx.array([ids]))[0, -1].argmax().item()))
    assert greedy == ids[len(PROMPT) :]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_texts_of_different_lengths_in_one_batch_are_read_as_alone(form, make_model):
    made = make_model(**form)
    model = Model(made.config)
    model.update(made.parameters())
    texts = [[5, 1, 30, 7, 2, 9, 4], [8, 3]]
    layers = zip(*(model.make_cache() for _ in texts), strict=True)
    batch = [parts[0].merge(parts) for parts in layers]
    for part in batch:
        part.prepare(lengths=[7, 2], right_padding=[0, 5])
    padded = mx.array([texts[0], [*texts[1], 0, 0, 0, 0, 0]])
    model(padded[:, :4], cache=batch)  # a long prompt is read in parts
    model(padded[:, 4:], cache=batch)
    for part in batch:
        part.finalize()
    kept = [part.extract(1) for part in batch]
    for part in batch:
        part.filter([1, 0])
    logits = model(mx.array([[6], [11]]), cache=batch)
    alone = [model(mx.array([[*texts[1], 6]]))[0, -1], model(mx.array([[*texts[0], 11]]))[0, -1]]
    assert mx.allclose(logits[:, 0], mx.stack(alone), atol=1e-4)
    assert kept[0].offset == 2


@pytest.mark.parametrize("mixing", ["softmax", "selective"])
def test_a_server_takes_tokens_back_unless_a_state_or_a_window_forgot_them(make_model, mixing):
    made = make_model(position="alibi", mixing=mixing)
    model = Model(made.config)
    model.update(made.parameters())
    cache = model.make_cache()
    decoded(model, cache, PROMPT, 4)
    other = copy.deepcopy(cache)
    assert [part.trim(3) for part in other if part.is_trimmable()] == [3, 3]
    assert (cache[0].offset, other[0].offset) == (9, 6)
    alone = model(mx.array([[*PROMPT, 8]]))[:, -1:]
    assert mx.allclose(model(mx.array([[8]]), cache=other), alone, atol=1e-4)
    for settings in ({"window": 4}, VARIANTS["deltanet"].settings):
        forgetful = Model(make_model(**settings).config)
        cache = forgetful.make_cache()
        assert all(part.is_trimmable() for part in cache)
        decoded(forgetful, cache, PROMPT, 4)
        assert not any(part.is_trimmable() for part in cache)
        assert all(part.nbytes for part in cache)


def test_without_learned_positions_a_text_may_outgrow_the_context(make_model):
    model = Model(make_model(position="alibi").config)
    cache = model.make_cache()
    assert len(decoded(model, cache, PROMPT, 60)) == 60
    assert cache[0].offset > model.config.context_length


def test_a_plugin_travels_in_the_folder_unless_it_has_changed(no_plugins, make_run, tmp_path, out):
    (mine := tmp_path / "mine.py").write_bytes(EXAMPLE.read_bytes())
    load_plugins(mine)
    loaded = make_run(**VARIANTS["talk"].settings)
    logits = loaded.model(mx.array([PROMPT]))
    export_run(loaded, TARGETS["mlx-lm"], out)
    assert (out / mine.name).read_bytes() == EXAMPLE.read_bytes()
    mine.write_text(mine.read_text() + "# another\n")
    with pytest.raises(RunError, match=r"plugin \S+mine.py has changed since it was loaded"):
        export_run(loaded, TARGETS["mlx-lm"], out, overwrite=True)
    unload_plugins()
    assert mx.array_equal(model_in(out)(mx.array([PROMPT])), logits)
