from mlx_attn.errors import ConfigError, RunError, did_you_mean


def test_the_two_errors_are_what_python_calls_such_failures():
    assert issubclass(ConfigError, ValueError)
    assert issubclass(RunError, RuntimeError)


def test_a_typing_error_gets_the_nearest_name():
    assert did_you_mean("mergd", ["standard", "merged"]) == ": did you mean 'merged'?"


def test_something_else_gets_all_names():
    assert did_you_mean("xyz", ["standard", "merged"]) == ": choose from standard, merged"
