"""Describe a trained model for a page: weights, graphs, tokenizer, formulas, texts and words."""

import ast
import base64
import inspect
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from jaxtyping import Integer

import mlx_attn
from mlx_attn.arrays import count_parameters, named_arrays
from mlx_attn.attention import attention
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.explore.traced import Constants, traced_model
from mlx_attn.model.gpt import GPT, FeedForward, TransformerBlock
from mlx_attn.probe.heads import LONGEST, corpus_of, validation_windows
from mlx_attn.records import package_table
from mlx_attn.run_directory import Run, best_of
from mlx_attn.runs import LoadedRun
from mlx_attn.text.characters import SymbolTokenizer
from mlx_attn.text.corpus import Corpus
from mlx_attn.text.foreign import ForeignTokenizer
from mlx_attn.text.sources import describe
from mlx_attn.text.subwords import SubwordTokenizer
from mlx_attn.text.tokenizers import Tokenizer

LARGEST = 30_000_000
"""Most numbers in a page: browsers open larger files slowly or not at all."""

_KEYS = ("vocab_size", "context_length", "emb_dim", "n_heads", "n_layers", "position")


def page_model(
    loaded: LoadedRun, dtype: str = "float32", words: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the model of a run with its best weights, as data for the page's script.

    The numbers of its heads, `page.head_numbers`, are not in it: they take long to measure, and a
    model that no page can hold is refused before.

    Args:
        loaded: A run.
        dtype: See `page.write_page`.
        words: The words of its training text, so that the page can mark new ones; None marks none.

    Raises:
        ConfigError: The page cannot compute the model; the message names the choice.
        RunError: The run cannot be read.
    """
    model = loaded.model
    facts = _model_facts(loaded.run, model)
    arrays = named_arrays(model).values()
    constants = Constants([np.array(array.astype(mx.float32)) for array in arrays])
    graphs = traced_model(model, constants)
    return {
        **facts,
        "words": words,
        "dtype": dtype,
        "layers": [_layer_facts(block.att) for block in model.trf_blocks],
        "graphs": graphs,
        "arrays": [array.shape for array in constants.weights],
        "constants": [array.shape for array in constants.others],
        "others": _base64(constants.others, "float32"),
        "start": loaded.start_tokens,
        "tokenizer": tokenizer_facts(loaded.tokenizer),
        "steps": [[*_steps(model, block.att)] for block in model.trf_blocks],
        "weights": _base64(constants.weights, dtype),
    }


def _model_facts(run: Run, model: GPT) -> dict[str, Any]:
    """Return the name, the sizes and the text of a model; refuse one that is too large."""
    parameters = count_parameters(model)
    if parameters > LARGEST:
        raise ConfigError(
            f"{run.path} has {parameters:,} numbers, and a page holds at most {LARGEST:,}: look "
            "into it with 'mlx-attn probe --figures DIR'"
        )
    name, best = str(run.settings.get("variant", "")), best_of(run.metrics())
    row = VARIANTS.get(name)
    formula, summary = (row.formula, row.summary) if row else ("", "")
    if pattern := model.config.pattern:
        summary = f"the variants of the layers in turn: {pattern}"
    validation = {"text": run.settings.get("digest"), "loss": best["val_loss"]} if best else None
    return {
        "name": run.name,
        "variant": name,
        "formula": formula,
        "summary": summary,
        "parameters": parameters,
        "config": {key: getattr(model.config, key) for key in _KEYS},
        "read": describe(run.corpus),
        "validation": validation,
    }


def _base64(arrays: Sequence[np.ndarray], dtype: str) -> str:
    """Encode the numbers of all arrays, one after the other, in base64."""
    joined = np.concatenate([np.zeros(0), *(array.reshape(-1) for array in arrays)])
    return base64.b64encode(joined.astype(dtype).tobytes()).decode()


def _layer_facts(layer: Attention) -> dict[str, Any]:
    """Return sizes and facts of one attention layer."""
    config, maps = layer.config, layer.maps
    is_pointwise = config.short_conv == "none"
    # A pair of queries has a matrix for each of its maps.
    has_matrices = maps.score.affine or maps.score.queries_per_head > 1
    return {
        "d_in": config.d_in,
        "n_heads": config.n_heads,
        "scale": config.scale,
        "queries_per_head": maps.score.queries_per_head,
        "slopes": [*layer.slopes],
        "has_score_matrix": bool(maps.score.weights) and is_pointwise and has_matrices,
        "has_output_matrix": is_pointwise and maps.value.affine and maps.output.affine,
    }


def tokenizer_facts(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the data with which the page encodes text like the tokenizer.

    Raises:
        ConfigError: It is a tokenizer of another program, and not like GPT-2's.
    """
    if isinstance(tokenizer, ForeignTokenizer):
        if not tokenizer.merges:
            raise ConfigError(
                "the page encodes text as GPT-2 does, and this run's tokenizer has other rules"
            )
        return {"kind": tokenizer.kind, "merges": tokenizer.merges, "end": tokenizer.end}
    if isinstance(tokenizer, SubwordTokenizer):
        pieces = tokenizer.scored_pieces()
        kinds = [kind for *_, kind in pieces]
        places = {"unknown": kinds.index("unknown"), "first_byte": kinds.index("byte")}
        return {"kind": tokenizer.kind, **places, "pieces": pieces}
    return {"kind": tokenizer.kind, **tokenizer.settings}


# The steps from a token to the next one, each with its formula and the source that computes it.

_STEPS = package_table("mlx_attn.explore", "steps")


def _step(name: str, *sources: dict[str, Any], **changed: str) -> dict[str, Any]:
    """Return a row of steps.toml, completed for the model."""
    return {**_STEPS[name], **changed, "sources": sources}


def _steps(model: GPT, layer: Attention) -> Iterator[dict[str, Any]]:
    block = TransformerBlock.__call__
    yield _step("input", source_of(block, "norm1(x)"))
    yield from _attention_steps(layer)
    yield _step("residual", source_of(block, "x + "), source_of(FeedForward.__call__, "layer(x)"))
    head = "tok_emb" if model.config.tied_head else "out_head"
    yield _step("logits", source_of(GPT.head), formula=f"p = softmax(final_norm(x) {head}^T)")


def _attention_steps(layer: Attention) -> Iterator[dict[str, Any]]:
    maps, mixing = layer.maps, layer.maps.mixing
    projected = source_of(maps.score.apply), *_turned(layer), source_of(maps.value.apply)
    yield _step("projections", *projected, formula=f"{maps.score.formula}; {maps.value.formula}")
    yield _step("scores", source_of(attention.attention_scores, "multiply_heads"))
    yield _mask_step(layer)
    mixed = source_of(mixing.apply), source_of(Attention.mix, "self.maps.mixing.apply")
    title = "softmax" if "softmax" in mixing.formula else "weights"
    name = "weights" if mixing.sums_to_one else "mixing"
    yield _step(name, *mixed, title=title, formula=mixing.formula)
    yield _step("heads", source_of(attention.multiply_heads, "folded @ matrices"))
    title = "concat, out_proj" if "out_proj" in layer else "output"
    yield _step("output", source_of(maps.output.apply), title=title, formula=maps.output.formula)


def _mask_step(layer: Attention) -> dict[str, Any]:
    hooks, window = layer.maps.logits, layer.config.window
    is_alibi = bool(layer.slopes)
    scores = "s_h" if hooks else "score_h"
    bias = " - slope_h (i - j)" if is_alibi else ""
    limit = f", none before i - {window - 1}" if window else ""
    masked = f"s_h(i, j) = {scores}(i, j){bias} for j <= i{limit}, else -infinity"
    formula = " then ".join([*(hook.formula for hook in hooks), masked])
    sources = [*(source_of(hook.apply) for hook in hooks), source_of(attention.causal_mask)]
    sources += [source_of(attention.alibi_bias)] if is_alibi else []
    sources.append(source_of(Attention.mix, "scores + self.mask"))
    return _step("alibi" if is_alibi else "mask", *sources, formula=formula)


def _turned(layer: Attention) -> Iterable[dict[str, Any]]:
    changes = (*layer.maps.convolution, *layer.maps.position)
    yield from (source_of(choice.apply) for choice in changes)
    if layer.config.qk_norm:
        yield source_of(attention.unit_rms)
    if layer.config.position == "rope":
        yield source_of(attention.rope)


def source_of(function: Callable[..., Any], piece: str = "") -> dict[str, Any]:
    """Return file, line and code of a function, without decorators and docstring.

    `marked` lists the lines of the code that contain `piece`, counted from 0.
    """
    function = inspect.unwrap(function)
    path, root = Path(inspect.getsourcefile(function) or ""), Path(mlx_attn.__file__).parent.parent
    lines, first = inspect.getsourcelines(function)
    definition = ast.parse(textwrap.dedent("".join(lines))).body[0]
    start = definition.lineno - 1  # the number of lines of decorators
    if isinstance(definition, ast.FunctionDef) and ast.get_docstring(definition):
        text = definition.body[0]
        del lines[text.lineno - 1 : text.end_lineno]
    code = textwrap.dedent("".join(lines[start:])).rstrip()
    path = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
    marked = [place for place, line in enumerate(code.splitlines()) if piece and piece in line]
    line = max(first, 1) + start
    return {"file": path.as_posix(), "line": line, "code": code, "marked": marked}


# Example texts, and the words of the training text.

EXAMPLES = 3
EXAMPLE_TOKENS = 40

MOST_TOKENS = 4_000_000
"""Longest training text whose words are listed; longer texts contain nearly every word."""

MOST_WORDS = 30_000
"""Most words in a page."""


def text_of(run: Run) -> Corpus | None:
    """Return the text that a run was trained on; None if it can no longer be read."""
    try:
        return corpus_of(run)
    except (ConfigError, RunError):
        return None


def example_texts(
    loaded: LoadedRun, corpus: Corpus | None, count: int = EXAMPLES, length: int = EXAMPLE_TOKENS
) -> list[str]:
    """Return beginnings of validation documents; without the text, the run's last sample."""
    tokenizer = loaded.tokenizer
    if corpus is None:
        written = re.split(r"^--- step \d+$", loaded.run.samples, flags=re.M)[-1].strip()
        return [_whole_words(tokenizer, tokenizer.encode(written), length) if written else ""]
    split = corpus.val
    if split.document_starts is None:
        windows = validation_windows(corpus, loaded.model.config.context_length, count)
        # A window begins anywhere, so its first word may be cut off.
        return [re.sub(r"^\S+\s+", "", _whole_words(tokenizer, one, length)) for one in windows]
    ends = np.append(split.document_starts[1:], len(split.tokens))
    chosen = np.unique(np.linspace(0, len(ends) - 1, count).astype(int))
    spans = zip(split.document_starts[chosen], ends[chosen], strict=True)
    passages = [split.tokens[start : min(end, start + LONGEST)] for start, end in spans]
    return [_whole_words(tokenizer, tokens, length) for tokens in passages]


def _whole_words(tokenizer: Tokenizer, tokens: Integer[np.ndarray, " N"], length: int) -> str:
    """Return the text of the first tokens, without a last word that is cut off."""
    text = tokenizer.decode(tokens[:length])
    following = tokenizer.decode(tokens[length : length + 1])
    cut = text if not following or following[0].isspace() else re.sub(r"\s+\S*$", "", text)
    return cut.strip() or text


def training_words(run: Run, corpus: Corpus | None) -> list[str] | None:
    """Return the sorted words of the text that a run was trained on; None if unknown.

    They are unknown if the text is not recorded or can no longer be read, is a task without words,
    or has more than `MOST_TOKENS` tokens or `MOST_WORDS` words.
    """
    # An imported model learned another text than it names.
    if corpus is None or not run.corpus:
        return None
    if isinstance(corpus.tokenizer, SymbolTokenizer) or len(corpus.train.tokens) > MOST_TOKENS:
        return None
    pieces = corpus.tokenizer.vocabulary
    parts = map(pieces.__getitem__, corpus.train.tokens.tolist())
    text = b"".join(parts).decode("utf-8", "replace")
    # Marks, such as the vowels of Hindi, are not in \w; the first keeps the class from being empty.
    marks = "".join(c for c in {"\u0300", *text} if unicodedata.category(c)[0] == "M")
    words = set(re.findall(rf"[^\W_]+(?:[{marks}]+[^\W_]*)*", text))
    return sorted(words) if len(words) <= MOST_WORDS else None
