"""The page has what the README's moving picture clicks."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "pictures.py"


def test_every_gesture_finds_its_element_and_the_head_goes_off(make_run, show):
    spec = importlib.util.spec_from_file_location("pictures", SCRIPT)
    assert spec
    assert spec.loader
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    page = show(make_run())
    page.run("new Promise((done) => setTimeout(done, 200))")
    effects = []
    for element, _ in pictures.GESTURES:
        assert all(side > 0 for side in page.run(pictures.PLACE.format(element=element)))
        page.run(f"({element}).click(); new Promise((done) => setTimeout(done, 50))")
        effects.append(page.run('document.getElementById("effect").textContent'))
    assert ["→" in effect for effect in effects] == [False, True, False, True, False]
