"""Makes the pictures of the README: `python docs/pictures.py [FOLDER]`.

Trains what is shown in FOLDER (runs/pictures by default; what is there already is kept), takes
photographs of the pages with Chromium, light and dark, and records a terminal with tmux as an
animated SVG. About six minutes on two cores.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).parent.parent
PICTURES = Path(__file__).parent / "pictures"
MLX_ATTN = f"{sys.executable} -m mlx_attn"
MOST_BYTES = 300_000

TRAIN = "train --name tiny-standard"
COMPARE = (
    "compare --variants standard,no-out-proj --preset nano --steps 200 --seeds 5 --no-tune "
    "--budgets steps --no-noise --out compared"
)
THEMES = {"dark": 0, "light": 1}  # the numbers that Chromium knows them by
WINDOWS = {"open": (1280, 1160), "report": (1280, 620)}


def main(arguments: Sequence[str]) -> None:
    """Make every picture; none may be large."""
    folder = Path(*arguments[:1] or ["runs/pictures"]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"open": _page(folder), "report": _report(folder)}
    for name, page in pages.items():
        for theme in THEMES:
            photograph(page, WINDOWS[name], theme, PICTURES / f"{name}-{theme}.png")
    (PICTURES / "terminal.svg").write_text(animation(list(record(folder))), encoding="utf-8")
    large = [picture.name for picture in PICTURES.iterdir() if picture.stat().st_size > MOST_BYTES]
    if large:
        raise SystemExit(f"larger than {MOST_BYTES / 1000:.0f} kB: {', '.join(large)}")


def _page(folder: Path) -> Path:
    if not (folder / "runs/tiny-standard").exists():
        _run(folder, TRAIN)
    _run(folder, "open tiny-standard --no-browser")
    return folder / "runs/tiny-standard/explore.html"


def _report(folder: Path) -> Path:
    if not (folder / "compared/report.html").exists():
        _run(folder, COMPARE)
    return folder / "compared/report.html"


def _run(folder: Path, command: str) -> None:
    """Run a command of the program in a folder."""
    subprocess.run([*MLX_ATTN.split(), *command.split()], cwd=folder, check=True)


# Pages.


def photograph(page: Path, window: tuple[int, int], theme: str, picture: Path) -> None:
    """Take a picture of a page's first screen in a theme."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        raise SystemExit("needs Chromium: apt install chromium, or brew install --cask chromium")
    options = "--headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=8000"
    sizes = f"--window-size={window[0]},{window[1]}"
    wish = f"--blink-settings=preferredColorScheme={THEMES[theme]}"
    command = [browser, *options.split(), sizes, wish, f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)


# The terminal.

COLUMNS, LINES = 84, 24
SECONDS = 0.12
"""Between two looks at the terminal."""
STEPS = (
    # What is typed, a text that is there when it is done, seconds to look at it, and how many times
    # faster than it was the wait is shown.
    ("mlx-attn train --preset nano --steps 300 --name nano --overwrite", "look into it:", 3.0, 6),
    ("mlx-attn repl tiny-standard --seed 7", "/help lists", 1.0, 4),
    ("One rainy morning, brave Anna", "tok/s", 3.0, 1),
    ("/runs", "answers", 2.0, 1),
    ("/temp 0", "temp", 0.8, 1),
    ("Hugo wanted to learn how to", "tok/s", 4.0, 1),
)
_SESSION = "mlx-attn-pictures"


def record(folder: Path) -> Iterator[tuple[float, list[Text]]]:
    """Lines of the terminal with the seconds that they stay, as a person works there."""
    environment = {"HISTFILE": "", "XDG_STATE_HOME": folder, "PYTHONPATH": ROOT}
    given = [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
    size = ["-x", str(COLUMNS), "-y", str(LINES), "-c", str(folder)]
    _tmux("new-session", "-d", "-s", _SESSION, *given, *size, "bash --norc --noprofile")
    try:
        begin = f"PS1='$ '; mlx-attn() {{ {MLX_ATTN} \"$@\"; }}; clear"
        _tmux("send-keys", "-t", _SESSION, begin, "Enter")
        time.sleep(1)
        for typed, wanted, pause, speed in STEPS:
            for character in typed:
                _tmux("send-keys", "-t", _SESSION, "-l", character)
                yield 0.05, _screen()
            before = "".join(line.plain for line in _screen()).count(wanted)
            _tmux("send-keys", "-t", _SESSION, "Enter")
            yield from ((seconds / speed, screen) for seconds, screen in _until(wanted, before))
            time.sleep(1)
            yield pause, _screen()
    finally:
        _tmux("kill-session", "-t", _SESSION)


def _until(wanted: str, before: int, patience: float = 120.0) -> Iterator[tuple[float, list[Text]]]:
    """Looks at the terminal until it shows a text more often than before."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        time.sleep(SECONDS)
        screen = _screen()
        yield SECONDS, screen
        text = "".join(line.plain for line in screen)
        if text.count(wanted) > before:
            return
    shown = "\n".join(line.plain for line in _screen())
    raise SystemExit(f"{shown}\nthe terminal does not show {wanted!r}")


def _screen() -> list[Text]:
    """What the terminal shows, with its styles."""
    shown = _tmux("capture-pane", "-e", "-p", "-t", _SESSION)
    return [Text.from_ansi(line) for line in shown.split("\n")[:LINES]]


def _tmux(*arguments: str) -> str:
    return subprocess.run(["tmux", *arguments], check=True, capture_output=True, text=True).stdout


# A recording as SVG: every line that was ever shown once, every frame a list of its lines, and one
# animation that moves from frame to frame.

CHARACTER, LINE, MARGIN = 8.4, 18, 14
INK, GROUND = "#e6e6e6", "#16191d"
_STYLE = f"""
text {{ font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
text {{ fill: {INK}; white-space: pre; }}
.film {{ animation: film TIMEs step-end infinite; }}
@media (prefers-reduced-motion: reduce) {{
.film {{ animation: none; transform: translateX(-LASTpx); }}
}}
"""


def animation(frames: Sequence[tuple[float, list[Text]]]) -> str:
    """The frames, each with its seconds, as one SVG that repeats."""
    shown = _merged(frames)
    width, height = round(COLUMNS * CHARACTER) + 2 * MARGIN, LINES * LINE + 2 * MARGIN
    lines: dict[str, int] = {}
    film = [_frame(screen, place * width, lines) for place, (_, screen) in enumerate(shown)]
    total = sum(seconds for seconds, _ in shown)
    rules, now = [], 0.0
    for place, (seconds, _) in enumerate(shown):
        rules.append(f"{100 * now / total:.3f}% {{ transform: translateX({-place * width}px) }}")
        now += seconds
    style = _STYLE.replace("TIME", f"{total:.1f}").replace("LAST", str((len(shown) - 1) * width))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            "<title>A terminal: a model is trained, and then talked to</title>",
            f"<style>{style}@keyframes film {{ {' '.join(rules)} }}</style><defs>",
            *(f'<text id="t{number}">{content}</text>' for content, number in lines.items()),
            f'</defs><rect width="{width}" height="{height}" rx="9" fill="{GROUND}"/>',
            f'<g class="film">{"".join(film)}</g></svg>\n',
        ]
    )


def _merged(frames: Sequence[tuple[float, list[Text]]]) -> list[tuple[float, list[Text]]]:
    """Frames that show something new, each for as long as it stays."""
    merged: list[tuple[float, list[Text]]] = []
    for seconds, screen in frames:
        if merged and merged[-1][1] == screen:
            merged[-1] = merged[-1][0] + seconds, screen
        else:
            merged.append((seconds, screen))
    return merged


def _frame(screen: list[Text], left: int, lines: dict[str, int]) -> str:
    """References to the lines of one frame; new ones are added to `lines`."""
    uses = []
    for row, line in enumerate(screen):
        if content := _markup(line):
            number = lines.setdefault(content, len(lines))
            y = MARGIN + (row + 1) * LINE - 5
            uses.append(f'<use href="#t{number}" x="{left + MARGIN}" y="{y}"/>')
    return "".join(uses)


def _markup(line: Text) -> str:
    """A line as SVG, a span for every style; "" for a blank one."""
    line = line.copy()
    line.rstrip()
    spans = []
    for part in line.divide(sorted({edge for span in line.spans for edge in span[:2]})):
        style = Style.combine([Style(), *(Style.parse(str(span.style)) for span in part.spans)])
        spans.append(_span(escape(part.plain), style))
    return "".join(spans)


def _span(text: str, style: Style) -> str:
    looks = 'font-weight="bold" ' * bool(style.bold) + 'opacity=".6" ' * bool(style.dim)
    if style.color and not style.color.is_default:
        looks += f'fill="{style.color.get_truecolor().hex}"'
    return f"<tspan {looks.strip()}>{text}</tspan>" if looks and text.strip() else text


if __name__ == "__main__":
    main(sys.argv[1:])
