"""The corpora that are fetched by name, and the folder where data lives."""

import os
import sys
from pathlib import Path

from mlx_attn.text.transfer import Download, Progress, fetch

__all__ = ["CORPORA", "GPT2_MERGES", "Download", "Progress", "data_directory", "fetch"]

CORPORA = {
    "tiny-shakespeare": Download(
        url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        file="tiny-shakespeare.txt",
        size=1_115_394,
        digest="sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        licence="public domain",
    ),
    "the-verdict": Download(
        url="https://raw.githubusercontent.com/rasbt/LLMs-from-scratch/main/ch02/01_main-chapter-code/the-verdict.txt",
        file="the-verdict.txt",
        size=20_479,
        digest="sha256:b41e41a68f0398a3154ae69e2e4c0e2694e17fe0d66730536837f1b01935b31f",
        licence="public domain (Edith Wharton, 1908)",
    ),
    # The validation file of the second version: as much as a tiny model needs.
    "tinystories": Download(
        url="https://huggingface.co/datasets/roneneldan/TinyStories/resolve/f54c09fd23315a6f9c86f9dc80f725de7d8f9c64/TinyStoriesV2-GPT4-valid.txt",
        file="tinystories.txt",
        size=22_502_601,
        digest="sha256:6874bae9a4c1a4e7edcf0e53b86c17817e9cf881fc75ff2368da457b80c0585d",
        licence="CDLA-Sharing-1.0",
    ),
    "enwik8": Download(
        url="https://mattmahoney.net/dc/enwik8.zip",
        file="enwik8.txt",
        size=100_000_000,
        digest="sha256:2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
        licence="Wikipedia, GFDL",
        member="enwik8",
        archive_size=36_445_475,
    ),
    # Its author published the MD5 sum.
    "text8": Download(
        url="https://mattmahoney.net/dc/text8.zip",
        file="text8.txt",
        size=100_000_000,
        digest="md5:3bea1919949baf155f99411df5fada7e",
        licence="Wikipedia, GFDL",
        member="text8",
        archive_size=31_344_016,
    ),
}

GPT2_MERGES = Download(
    url="https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe",
    file="gpt2.vocab.bpe",
    size=456_318,
    digest="sha256:1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    licence="MIT, modified (OpenAI)",
    instead="use --tokenizer bpe, which is trained here",
)


def data_directory() -> Path:
    """Where corpora are: `MLX_ATTN_DATA_DIR`, else `data/` in a clone, else the user's cache."""
    if chosen := os.environ.get("MLX_ATTN_DATA_DIR"):
        return Path(chosen).expanduser()
    readme = Path("data", "README.md")
    if readme.is_file() and "mlx_attn" in readme.read_text(encoding="utf-8", errors="replace"):
        return readme.parent
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mlx_attn"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlx_attn"
