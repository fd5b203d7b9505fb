"""The report in a browser: on a phone and on a large screen, in light and in dark."""

from mlx_attn.comparison.report import as_html

READABLE = 4.5
"""Contrast that small text needs (WCAG 2, AA)."""


def test_the_page_is_as_wide_as_the_window(browse, comparison):
    long = "a variant with a very long name and NoSpacesInItsSettings=" + 20 * "x"
    page = as_html(comparison(arms=["standard", long], name=4 * long))
    for width in (360, 1280):
        assert browse(page, "return page.documentElement.scrollWidth;", width=width) <= width


def test_text_can_be_read_in_light_and_in_dark(no_figures, browse, comparison, luminance):
    page = as_html(comparison())
    for theme in ("light", "dark"):
        colours = browse(
            page,
            """const of = (s, key) => view.getComputedStyle($(s))[key];
            const inks = ["body", "figcaption", "thead th", ".word.the-same", ".word.worse",
              ".word.not-known"];
            return [of("body", "backgroundColor"), ...inks.map((s) => of(s, "color"))];""",
            theme=theme,
        )
        ground, *inks = map(luminance, colours)
        assert (ground > 0.5) == (theme == "light")
        for ink in inks:
            assert (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05) > READABLE
