from mlx_attn.text.show import download_lines, tokenizing_lines


def said(calls) -> list[str]:
    lines = []
    progress = download_lines(lines.append)
    for done, total in calls:
        progress(done, total)
    return lines


def test_a_line_at_every_tenth_of_the_way():
    lines = said((done, 1_000_000) for done in range(0, 1_000_001, 10_000))
    assert lines[:2] == ["downloading: 0 kB of 1 MB", "downloading: 100 kB of 1 MB"]
    assert len(lines) == 11


def test_without_a_known_size_a_line_every_ten_megabytes():
    lines = said((done, None) for done in range(0, 30_000_001, 1_000_000))
    assert lines[1:] == ["downloading: 10 MB", "downloading: 20 MB", "downloading: 30 MB"]


def test_tokenizing_a_long_text_is_told_and_a_short_one_is_not():
    lines: list[str] = []
    for total in (1_000_000, 1_000_000_000):
        progress = tokenizing_lines(lines.append)
        for tenth in range(11):
            progress(total * tenth // 10, total)
    assert lines[:2] == ["tokenizing: 0 kB of 1.0 GB", "tokenizing: 100 MB of 1.0 GB"]
    assert len(lines) == 11
