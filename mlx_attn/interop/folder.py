"""Write a folder for another program: config, weights, tokenizer, model card.

An exported folder lists the files that export wrote, each with its digest. Every other file, and
any file that was changed since, belongs to the user and stays when the folder is exported again.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_attn.arrays import save_arrays
from mlx_attn.errors import RunError
from mlx_attn.files import lock, make_directory, remove, unwritable, write_text
from mlx_attn.interop.checkpoints import WEIGHTS
from mlx_attn.interop.mlx_lm import MODEL_FILE, is_its_gpt2
from mlx_attn.interop.tokenizer_json import NOTES, OWN, as_json, tokenizer_files
from mlx_attn.records import read_record
from mlx_attn.runs import LoadedRun


def write_folder(
    loaded: LoadedRun, out: Path, config: Mapping[str, Any], arrays: Mapping[str, mx.array]
) -> None:
    """Write configuration, weights, tokenizer and generation settings.

    The tokenizer is written a second time in the format of a run, which `import` reads.
    """
    context, tokenizer = loaded.model.config.context_length, loaded.tokenizer
    end = {} if tokenizer.end is None else {"eos_token_id": tokenizer.end}
    start = loaded.start_tokens
    first = {"bos_token_id": start[0]} if len(start) == 1 else {}  # how unprompted text begins
    files = {
        "config.json": as_json({**config, **end, "dtype": "float32"}),
        "generation_config.json": as_json({"max_length": context, **first, **end}),
        **tokenizer_files(tokenizer, context),
    }
    for name, content in files.items():
        write_text(out / name, content)
    plain = {name: mx.contiguous(array) for name, array in arrays.items()}
    save_arrays(out / WEIGHTS, plain, {"format": "pt"})  # as transformers asks
    tokenizer.save(out / OWN)


def write_card(loaded: LoadedRun, place: Path, route: str, parity: str) -> None:
    """Write README.md: how to run the folder, and its limits."""
    is_book, has_code = route.startswith("the book"), (place / MODEL_FILE).exists()
    notes = [f"It is {route}.", f"{parity}.", *NOTES.get(loaded.tokenizer.kind, ())]
    notes.append(f"It was trained on {loaded.model.config.context_length} tokens at a time.")
    if not has_code or loaded.model.config.position == "learned":
        notes[-1] += " Prompt and continuation together must not be longer; few programs say so."
    if start := loaded.tokenizer.decode(loaded.start_tokens):
        notes.append(f"Every document that it was trained on began after {start!r}, as prompts do.")
    if has_code:
        notes.append(
            f"It needs mlx_attn installed beside mlx-lm, and --trust-remote-code, because "
            f"{MODEL_FILE} is code: read it first. LM Studio loads no such folder."
        )
    lines = _IN_THE_BOOK if is_book else _command(loaded, start, has_code)
    listed = "".join(f"\n- {note}" for note in notes)
    text = f"# A small language model, trained with mlx_attn\n\n{lines}\n{listed}\n"
    write_text(place / "README.md", text)


_IN_THE_BOOK = """In the notebook of the book's chapter 4 or 5, where GPTModel is defined:

```python
import json
from safetensors.torch import load_file

model = GPTModel(json.load(open("config.json")))
model.load_state_dict(load_file("model.safetensors"))
```"""


def _command(loaded: LoadedRun, start: str, has_code: bool) -> str:
    """Return what continues a prompt in the folder itself, with mlx-lm or else transformers."""
    is_small = loaded.tokenizer.kind in ("char", "symbols")  # which may lack any letter
    prompt = loaded.tokenizer.decode([0]) if is_small else f"{start}One rainy day"
    room = max(1, min(100, loaded.model.config.context_length - 8))
    if not (has_code or is_its_gpt2(loaded.model.config)):
        code = f'pipeline("text-generation", ".")({prompt!r}, max_new_tokens={room})'
        return f"```python\nfrom transformers import pipeline\n\nprint({code})\n```"
    written = prompt.encode("unicode_escape").decode().replace("'", r"\'")
    trust = " --trust-remote-code" if has_code else ""
    return (
        f"```sh\nmlx_lm.generate --model . --prompt $'{written}' "
        f"-m {room}{trust} --ignore-chat-template\n```"
    )


# Which files of a folder are the export's own.

_LIST = f"{OWN}/exported.json"


@contextmanager
def new_folder(out: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a new folder whose files replace an earlier export's in `out` when the block ends.

    The user's files stay in `out`. If the block raises, `out` is unchanged.

    Raises:
        RunError: `out` is not an earlier export that may be overwritten, the new one needs the name
            of a user's file, or the folder cannot be written.
    """
    if out.exists() and (reason := _why_not_replaced(out, overwrite)):
        raise RunError(f"{out} {reason} --out names another place")
    new = out.parent / f".export-{out.name}" / "new"
    try:
        with lock(new.parent):
            try:
                remove(new)  # of an export that was killed
                make_directory(new)
                yield new
                digests = {name: _digest(new / name) for name in sorted(_names(new) - {OWN})}
                write_text(new / _LIST, json.dumps(digests, indent=1) + "\n")
                _replace(out, new)
            finally:
                remove(new)
    except OSError as error:
        raise unwritable(out, error) from error
    except RunError as error:
        raise RunError(str(error).replace(str(new), str(out))) from error


def _why_not_replaced(out: Path, overwrite: bool) -> str:
    if not out.is_dir():
        return "is a file, and an export is a folder:"
    if not overwrite:
        return "exists: --overwrite replaces it,"
    is_export = (out / _LIST).is_file() or not _names(out)
    return "" if is_export else "was not written by export, so --overwrite leaves it alone:"


def _replace(out: Path, new: Path) -> None:
    """Move the files of a new export into `out`, and remove the others of an earlier one."""
    if not out.exists():
        new.rename(out)
        return
    listed = read_record(out / _LIST, dict[str, str]) if (out / _LIST).is_file() else {}
    old, named = _names(out), _names(new)
    # A file that equals the new one is of an export that was killed before its list, the last.
    written = {_LIST}
    written |= {n for n in old if _digest(out / n) in (listed.get(n, ""), _digest(new / n) or "")}
    for name in sorted(old - written - {OWN}):
        if name in named or name.startswith(f"{OWN}/"):
            raise RunError(
                f"{out / name} was changed since the export, or is not of it: move it elsewhere, "
                "or --out names another place"
            )
    make_directory(out / OWN)
    for name in sorted((old & written) - named):
        (out / name).unlink()
    for name in sorted(named - {OWN}, key=lambda name: (name == _LIST, name)):
        (new / name).replace(out / name)


def _names(folder: Path) -> set[str]:
    """Return the names in an exported folder and its `OWN` folder, without hidden ones: a Mac's."""
    paths = [*folder.glob("[!.]*"), *folder.glob(f"{OWN}/[!.]*")]
    return {path.relative_to(folder).as_posix() for path in paths}


def _digest(path: Path) -> str | None:
    """Return the digest of an ordinary file; None for anything else."""
    if path.is_symlink() or not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
