"""The tokenizer.json of an export: read by the `tokenizers` library, its ids are ours."""

import pytest
import tokenizers as library

from mlx_attn.interop.tokenizer_json import tokenizer_json

from .conftest import TEXT

TEXTS = (
    "the  quick   fox",
    " the fox ",
    "\n\nIt\n jumps\n",
    "fox \U0001f600 dog, naïve ones, Übung",
    "13 dogs, isn't it?",
    "a\0b\tc",
)


@pytest.mark.parametrize("kind", ["byte", "bpe", "unigram", "gpt2", "char"])
def test_the_ids_of_a_text_are_ours_and_it_comes_back(kind, tokenizers):
    theirs = library.Tokenizer.from_str(tokenizer_json(tokenizers[kind]))
    for text in (TEXT[:300],) if kind == "char" else TEXTS:
        ids = tokenizers[kind].encode(text).tolist()
        assert theirs.encode(text).ids == ids
        assert theirs.decode(ids) == text
