import pytest

from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.convert.conversions import CONVERSIONS
from mlx_attn.errors import ConfigError, RunError, did_you_mean, find_row
from mlx_attn.model.config import BLOCKS, PRESETS
from mlx_attn.text.downloads import CORPORA


def test_the_two_errors_are_what_python_calls_such_failures():
    assert issubclass(ConfigError, ValueError)
    assert issubclass(RunError, RuntimeError)


def test_a_typing_error_gets_the_nearest_name_and_something_else_all_names():
    assert did_you_mean("mergd", ["standard", "merged"]) == ": did you mean 'merged'?"
    assert did_you_mean("xyz", ["standard", "merged"]) == ": choose from standard, merged"


@pytest.mark.parametrize("table", [VARIANTS, CONVERSIONS, PRESETS, BLOCKS, CORPORA])
def test_every_row_is_found_by_its_name(table):
    assert all(find_row(table, name, "row") is row for name, row in table.items())


def test_a_name_may_have_capitals_and_underscores_and_an_unknown_one_is_refused():
    assert find_row({"no-key": 3}, "No_Key", "variant") == 3
    with pytest.raises(ConfigError, match="unknown variant 'No_Kye': did you mean 'no-key'"):
        find_row({"no-key": 3}, "No_Kye", "variant")
