"""The style sheet: complete in light and dark, with colours that can be told from their ground."""

import re
from importlib.resources import files

import pytest

from flashinfer_bench.data import EvaluationStatus

CSS = files("fib_report.page").joinpath("page.css").read_text()
SCRIPT_FOLDER = files("fib_report.page").joinpath("script")
JS = "".join(script.read_text() for script in SCRIPT_FOLDER.iterdir())

SERIES = [f"c{n}" for n in range(1, 9)]
OTHERS = "c0"


def themes():
    """Return the variables of each theme: light, dark by the system, dark by hand."""
    blocks = re.findall(r":root[^{]*\{([^}]*--page[^}]*)\}", CSS)
    return [dict(re.findall(r"--([\w-]+):\s*([^;]+);", block)) for block in blocks]


LIGHT, DARK_BY_SYSTEM, DARK_BY_HAND = themes()


def luminance(colour):
    """Return the relative luminance of WCAG 2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """Return the contrast of WCAG 2, from 1 to 21."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_variable_that_is_used_is_defined():
    used = set(re.findall(r"var\(--([\w-]+)\)", CSS)) - {"c"}  # --c is set by each series
    assert used <= LIGHT.keys()
    assert LIGHT.keys() <= used


@pytest.mark.parametrize("theme", [LIGHT, DARK_BY_HAND], ids=["light", "dark"])
@pytest.mark.parametrize(("ink", "least"), [("ink", 12), ("soft", 5), ("accent", 4.5), ("rule", 3)])
@pytest.mark.parametrize("ground", ["page", "card"])
def test_text_can_be_read(theme, ink, least, ground):
    assert contrast(theme[ink], theme[ground]) >= least


def test_every_status_and_series_has_a_colour():
    for status in EvaluationStatus:
        assert f".st-{status.value.lower().replace('_', '-')} {{ --c:" in CSS
        assert f'"{status.value}"' in JS
    for name in (*SERIES, OTHERS):
        assert f".{name} {{ --c: var(--{name}); }}" in CSS
    assert f"const COLOURS = {len(SERIES)};" in JS


def test_style_and_script_ask_for_nothing():
    for text in (CSS, JS.replace("http://www.w3.org/2000/svg", "")):
        assert not re.search(
            r"url\(|@import|fetch\(|XMLHttp|https?:|import\(|eval\(|innerHTML|outerHTML"
            r"|insertAdjacent|document\.write|new Function|createContextual",
            text,
        )
    assert "</" not in CSS + JS  # it would end the element that they are in
