import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_attn.errors import ConfigError
from mlx_attn.text.characters import SymbolTokenizer
from mlx_attn.text.tokenizers import Tokenizer, load_tokenizer

SYMBOLS = SymbolTokenizer(["k0", "k1", "v0"])


def test_a_text_is_read_symbol_by_symbol_from_a_newline_on():
    assert isinstance(SYMBOLS, Tokenizer)
    assert SYMBOLS.encode("k0 v0  k1").tolist() == [0, 1, 3, 2]
    assert SYMBOLS.encode("\nk0").tolist() == SYMBOLS.encode("k0").tolist()
    assert SYMBOLS.encode("k0\nk1").tolist() == [0, 1, 0, 2]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 3), max_size=20))
def test_what_it_writes_it_reads(tokens):
    tokens = [0, *tokens]
    assert SYMBOLS.encode(SYMBOLS.decode(tokens)).tolist() == tokens
    assert b"".join(map(SYMBOLS.token_bytes, tokens)).decode() == SYMBOLS.decode(tokens)


def test_what_is_no_symbol_is_named():
    with pytest.raises(ConfigError, match=r"no symbols of this task: 'k9', 'x'; its 3 symbols"):
        SYMBOLS.encode("k0 x k9")


def test_it_is_saved_and_loaded(tmp_path):
    SYMBOLS.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.kind == "symbols"
    assert np.array_equal(loaded.encode("k1 v0"), SYMBOLS.encode("k1 v0"))
