"""Make the pictures of the documentation: `python docs/pictures.py [NAME ...]`, all by default.

    terminal   a training and a conversation, recorded with tmux, as an animated SVG
    open       the first screen of a page of `mlx-attn open`
    switch     the same page while a head is switched off, as an animated WebP
    report     the first screen of a comparison's report

Chromium takes the pictures of pages, light and dark. Missing models are trained in runs/pictures;
the terminal trains its model each time. This takes about six minutes on two cores.
"""

import io
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

from PIL import Image
from rich.style import Style
from rich.text import Text

from tests.chromium import Browser, find_chromium

ROOT = Path(__file__).parent.parent
PICTURES = Path(__file__).parent / "pictures"
FOLDER = ROOT / "runs" / "pictures"
MLX_ATTN = f"{sys.executable} -m mlx_attn"
MOST_BYTES = {".webp": 600_000, ".png": 150_000, ".svg": 300_000}
COLOURS = 256  # of a photograph: a third of the bytes of all colours

THEMES = {"light": False, "dark": True}


def main(names: Sequence[str]) -> None:
    """Make these pictures, and fail if one is too large."""
    makers = {"terminal": terminal, "open": first_screen, "switch": switch, "report": report}
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or makers:
        makers[name]()
    sizes = {picture: picture.stat().st_size for picture in PICTURES.iterdir()}
    large = [file.name for file, size in sizes.items() if size > MOST_BYTES[file.suffix]]
    if large:
        raise SystemExit(f"too large: {', '.join(large)}")


def terminal() -> None:
    """Record a terminal."""
    shutil.rmtree(FOLDER / "runs", ignore_errors=True)
    (PICTURES / "terminal.svg").write_text(animation(list(record())), encoding="utf-8")


def first_screen() -> None:
    """Photograph the page of a run."""
    _photograph(_page(), (1280, 1160), "open")


def report() -> None:
    """Photograph the report of a comparison."""
    if not (FOLDER / "runs/demo/comparison.json").exists():
        _run("demo --no-browser")
    _photograph(FOLDER / "runs/demo/report.html", (1280, 620), "report")


def _page() -> Path:
    if not (FOLDER / "runs/tiny-standard").exists():
        _run("train --name tiny-standard")
    _run("open tiny-standard --no-browser")
    return FOLDER / "runs/tiny-standard/explore.html"


def _run(command: str) -> None:
    """Run a command of the program."""
    subprocess.run([*MLX_ATTN.split(), *command.split()], cwd=FOLDER, check=True)


# Pages.


def _browser() -> Browser:
    program = find_chromium()
    if not program:
        raise SystemExit("needs Chromium: apt install chromium, or brew install --cask chromium")
    return Browser(program, Path(tempfile.mkdtemp()))


def _in_both_themes(
    page: Path, window: tuple[int, int], act: Callable[[Browser, str], None]
) -> None:
    """Open a page, light and dark, and do something with each."""
    browser = _browser()
    for theme, dark in THEMES.items():
        browser.open(page.as_uri(), *window, dark=dark)
        browser.run(_RESTED)
        act(browser, theme)
    browser.close()


def _photograph(page: Path, window: tuple[int, int], name: str) -> None:
    """Take a picture of a page's first screen in each theme."""

    def take(browser: Browser, theme: str) -> None:
        picture = Image.open(io.BytesIO(browser.photograph())).convert("RGB")
        picture.quantize(COLOURS).save(PICTURES / f"{name}-{theme}.png", optimize=True)

    _in_both_themes(page, window, take)


_RESTED = "new Promise((done) => setTimeout(done, 4000))"
"""Resolves when the page has drawn the requested state, and counted the loss without each head."""

# A person's hand: a pointer that moves to an element, and acts there.

_POINTER = """
const hand = document.createElementNS("http://www.w3.org/2000/svg", "svg");
hand.setAttribute("id", "hand");
hand.setAttribute("viewBox", "0 0 20 28");
hand.innerHTML = '<path d="M2 1v22l5.5-5 4 9 3.6-1.6-4-8.8H18z" stroke-width="1.6"/>';
Object.assign(hand.style, { position: "fixed", width: "26px", zIndex: 9, left: 0, top: 0 });
Object.assign(hand.style, { fill: "black", stroke: "white", pointerEvents: "none" });
document.body.append(hand);
"""
PLACE = """
(() => {{
const box = ({element}).getBoundingClientRect();
return [box.left + Math.min(box.width, 60) / 2, box.top + box.height / 2];
}})()
"""
_NEEDED = """[...document.querySelectorAll(".heads button")].reduce((most, one) => {
  const worth = (button) => Number(button.lastElementChild.textContent.replace("\u2212", "-"));
  return worth(one) > worth(most) ? one : most;
})"""
GESTURES = (
    # The targets of the pointer, with the seconds that the result of each click is shown.
    (_NEEDED, 1.2),
    ('document.querySelector("#off")', 3.0),
    ('document.querySelector("#restore")', 1.2),
    ('document.querySelector("#mask")', 3.0),
    ('document.querySelector("#restore")', 1.5),
)
MOVES, MOVE_SECONDS = 6, 0.06
START = (620.0, 330.0)


def switch() -> None:
    """Film a page while a head and then the causal mask are switched off and on again."""
    _in_both_themes(_page(), (1280, 1000), _film)


def _film(browser: Browser, theme: str) -> None:
    browser.run(_POINTER)
    frames = list(_gestures(browser))
    first, *others = [_shrunk(picture) for _, picture in frames]
    first.save(
        PICTURES / f"switch-{theme}.webp",
        save_all=True,
        append_images=others,
        duration=[round(1000 * seconds) for seconds, _ in frames],
        loop=0,
        quality=60,
        minimize_size=True,
    )


def _shrunk(picture: bytes) -> Image.Image:
    """Return a frame in about the size in which a README shows it."""
    return (
        Image.open(io.BytesIO(picture)).convert("RGB").resize((1024, 800), Image.Resampling.LANCZOS)
    )


def _gestures(browser: Browser) -> Iterator[tuple[float, bytes]]:
    """Yield photographs with the seconds that each is shown."""
    here = START
    yield 1.8, _with_pointer(browser, here)
    for element, seconds in GESTURES:
        there = browser.run(PLACE.format(element=element))
        for move in range(1, MOVES + 1):
            share = move / MOVES
            now = tuple(a + (b - a) * share for a, b in zip(here, there, strict=True))
            yield MOVE_SECONDS, _with_pointer(browser, now)
        yield 0.25, _with_pointer(browser, there)
        browser.run(f"({element}).click()")
        browser.run(_RESTED)
        yield seconds, _with_pointer(browser, there)
        here = there


def _with_pointer(browser: Browser, place: Sequence[float]) -> bytes:
    browser.run(f"hand.style.transform = 'translate({place[0]:.0f}px, {place[1]:.0f}px)'")
    return browser.photograph()


# The terminal.

COLUMNS, LINES = 84, 24
SECONDS = 0.12
"""Seconds between two looks at the terminal."""
PATIENCE = 600.0  # seconds
SHELL = "$ "
"""The last line of a terminal that waits for a command."""
STEPS = (
    # The input, a text that appears when it is done, seconds to show it, and the speed-up of the
    # recorded wait.
    ("mlx-attn train", SHELL, 3.0, 10),
    ("mlx-attn repl --seed 7", "/help lists", 1.0, 4),
    ("One rainy morning, brave Anna", "tok/s", 3.0, 1),
    ("/runs", "answers", 2.0, 1),
    ("/temp 0", "temp", 0.8, 1),
    ("On a frosty afternoon, gentle Hugo", "tok/s", 4.0, 1),
)
_SESSION = "mlx-attn-pictures"


def record() -> Iterator[tuple[float, list[Text]]]:
    """Yield the terminal's lines with the seconds that they are shown, as a person works there."""
    environment = {"HISTFILE": "", "XDG_STATE_HOME": FOLDER, "PYTHONPATH": ROOT}
    given = [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
    size = ["-x", str(COLUMNS), "-y", str(LINES), "-c", str(FOLDER)]
    _tmux("new-session", "-d", "-s", _SESSION, *given, *size, "bash --norc --noprofile")
    try:
        begin = f"PS1='$ '; mlx-attn() {{ {MLX_ATTN} \"$@\"; }}; clear"
        _tmux("send-keys", "-t", _SESSION, begin, "Enter")
        time.sleep(1)
        for typed, wanted, pause, speed in STEPS:
            for character in typed:
                _tmux("send-keys", "-t", _SESSION, "-l", character)
                yield 0.05, _screen()
            before = _count(wanted, _screen())
            _tmux("send-keys", "-t", _SESSION, "Enter")
            yield from ((seconds / speed, screen) for seconds, screen in _until(wanted, before))
            time.sleep(1)
            yield pause, _screen()
    finally:
        _tmux("kill-session", "-t", _SESSION)


def _until(wanted: str, before: int) -> Iterator[tuple[float, list[Text]]]:
    """Wait until the terminal shows a text more often than before."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        time.sleep(SECONDS)
        screen = _screen()
        yield SECONDS, screen
        if _count(wanted, screen) > before:
            return
    shown = "\n".join(line.plain for line in _screen())
    raise SystemExit(f"{shown}\nthe terminal does not show {wanted!r}")


def _count(wanted: str, screen: list[Text]) -> int:
    """Count a text on the screen; the shell's prompt counts only on the last line."""
    lines = [line.plain for line in screen if line.plain]
    return lines[-1:] == [SHELL.strip()] if wanted == SHELL else "".join(lines).count(wanted)


def _screen() -> list[Text]:
    """Return the contents of the terminal, with its styles."""
    shown = _tmux("capture-pane", "-e", "-p", "-t", _SESSION)
    return [Text.from_ansi(line) for line in shown.split("\n")[:LINES]]


def _tmux(*arguments: str) -> str:
    return subprocess.run(["tmux", *arguments], check=True, capture_output=True, text=True).stdout


# A recording as SVG: each distinct line once, each frame as a list of its lines, and one animation
# that moves from frame to frame.

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
    """Return the frames, each with its seconds, as one SVG that repeats."""
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
    """Merge equal frames, and add up their seconds."""
    merged: list[tuple[float, list[Text]]] = []
    for seconds, screen in frames:
        if merged and merged[-1][1] == screen:
            merged[-1] = merged[-1][0] + seconds, screen
        else:
            merged.append((seconds, screen))
    return merged


def _frame(screen: list[Text], left: int, lines: dict[str, int]) -> str:
    """Return references to the lines of one frame, and add new ones to `lines`."""
    uses = []
    for row, line in enumerate(screen):
        if content := _markup(line):
            number = lines.setdefault(content, len(lines))
            y = MARGIN + (row + 1) * LINE - 5
            uses.append(f'<use href="#t{number}" x="{left + MARGIN}" y="{y}"/>')
    return "".join(uses)


def _markup(line: Text) -> str:
    """Return a line as SVG with a span for every style, or "" for a blank line."""
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
