"""How every page of the project is made: one HTML file, no network, nothing quoted is markup."""

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from mlx_attn.errors import RunError

if TYPE_CHECKING:
    from markupsafe import Markup

_MISSING = "the page needs jinja2: pip install 'mlx-attn[lab]'"


def render(name: str, /, **values: Any) -> str:
    """The page of a template, with the project's own style and that of the template.

    Args:
        name: Of the template, without the ending.
        values: What the template shows; text is escaped.

    Raises:
        RunError: jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise RunError(_MISSING) from error
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style = markup(template("page.css") + template(f"{name}.css"))
    return environment.from_string(template(f"{name}.html")).render(style=style, **values)


def template(name: str) -> str:
    """A file that pages are made of."""
    return (files("mlx_attn.show") / "templates" / name).read_text(encoding="utf-8")


def markup(text: str) -> "Markup":
    """Text of our own that is markup.

    Raises:
        RunError: jinja2 is not installed.
    """
    try:
        from markupsafe import Markup
    except ImportError as error:
        raise RunError(_MISSING) from error
    return Markup(text)
