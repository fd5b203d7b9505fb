"""The file that a comparison is kept in, written and read back."""

import json
from pathlib import Path

from mlx_attn.errors import RunError
from mlx_attn.files import write_text
from mlx_attn.lab.compare.result import FORMAT, Comparison, comparison_from
from mlx_attn.runs.run import parsed_object, read_text

COMPARISON = "comparison.json"
"""The file's name, in the comparison's directory."""


def save_comparison(comparison: Comparison, directory: Path) -> Path:
    """Write a comparison into its directory; returns the file.

    Raises:
        RunError: The file cannot be written.
    """
    content = json.dumps(comparison.as_dict(), indent=1, allow_nan=False)
    write_text(directory / COMPARISON, content + "\n")
    return directory / COMPARISON


def read_comparison(directory: Path) -> Comparison:
    """The comparison that a directory holds.

    Raises:
        RunError: There is none, it is damaged, or another version of the package wrote it.
    """
    file = directory / COMPARISON
    if not file.is_file():
        raise RunError(f"{directory} holds no comparison: there is no {COMPARISON} in it")
    record = parsed_object(read_text(file), str(file))
    if record.get("format", FORMAT) != FORMAT:
        raise RunError(
            f"{file} has format {record['format']}, this version reads {FORMAT}: install the "
            "version of mlx_attn that wrote it"
        )
    try:
        return comparison_from(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{file} is not a whole comparison ({error!r}): make it again") from error
