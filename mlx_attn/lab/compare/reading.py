"""The file that a comparison is kept in, read back."""

from pathlib import Path

from mlx_attn.errors import RunError
from mlx_attn.lab.compare.result import FORMAT, Comparison, comparison_from
from mlx_attn.runs.run import parsed_object, read_text

COMPARISON = "comparison.json"
"""The file's name, in the comparison's directory."""


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
