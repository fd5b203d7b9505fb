import pytest

from mlx_attn.ui.terminal import age, count, duration, memory


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0"),
        (943, "943"),
        (999.4, "999"),
        (9430, "9.43k"),
        (94300, "94.3k"),
        (943e3, "943k"),
        (999_600, "1.00M"),
        (9.43e6, "9.43M"),
        (1.5e9, "1.50G"),
        (2e15, "2000T"),
        (-9430, "-9.43k"),
    ],
)
def test_a_count_has_three_digits(number, shown):
    assert count(number) == shown


@pytest.mark.parametrize(
    ("n_bytes", "shown"),
    [(0, "0 kB"), (19_600, "20 kB"), (12e6, "12 MB"), (1.24e9, "1.2 GB"), (4e12, "4000.0 GB")],
)
def test_bytes_are_in_decimal_units(n_bytes, shown):
    assert memory(n_bytes) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0:00"),
        (7.4, "0:07"),
        (59.6, "1:00"),
        (102, "1:42"),
        (7390, "2:03:10"),
        (float("inf"), "-"),
        (float("nan"), "-"),
        (-1, "-"),
    ],
)
def test_a_duration_is_minutes_and_seconds_or_hours(seconds, shown):
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-1, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (4e5, "4 days"),
    ],
)
def test_ages(seconds, shown):
    assert age(seconds) == shown
