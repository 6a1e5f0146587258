"""Contrast by the formula of WCAG 2.2, written a second time."""

from __future__ import annotations

import numpy as np
import pytest

from fp4lab.report import style


def luminance(colour: str) -> float:
    """Relative luminance of an sRGB colour."""

    def linear(part: str) -> float:
        value = int(part, 16) / 255
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(colour[i : i + 2]) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


def test_the_formula() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    # the lightest grey that passes on white
    assert contrast("#767676", "#ffffff") > 4.5 > contrast("#777777", "#ffffff")


@pytest.mark.parametrize("palette", [style.LIGHT, style.DARK], ids=["light", "dark"])
def test_text_is_readable(palette: style.Palette) -> None:
    for text in (palette.ink, palette.quiet, palette.link):
        for ground in (palette.ground, palette.soft, palette.alert):
            assert contrast(text, ground) >= 4.5
    assert contrast(palette.edge, palette.ground) >= 3
    assert palette.ground.lower() != palette.ink.lower()


@pytest.mark.parametrize("colour", [*style.COLOURS, style.GREY])
def test_lines_are_visible_on_light_and_dark(colour: str) -> None:
    for palette in (style.LIGHT, style.DARK):
        assert contrast(colour, palette.ground) >= 3


def test_numbers_on_tiles_are_readable() -> None:
    """4.58 is the contrast of both to the colour where they meet: the root of 21."""
    rng = np.random.default_rng(0)
    worst = 21.0
    for tile in rng.integers(0, 256, (2000, 3)):
        colour = "#" + "".join(f"{part:02x}" for part in tile)
        chosen = {"black": "#000000", "white": "#ffffff"}[style.text_on((tile / 255).tolist())]
        worst = min(worst, contrast(colour, chosen))
    assert 4.58 <= worst < 4.7


def test_dark_and_light_are_told_apart() -> None:
    assert luminance(style.DARK.ground) < 0.05
    assert luminance(style.LIGHT.ground) > 0.9
    names = {part.split(":")[0].strip() for part in style.LIGHT.css().split(";")}
    assert names == {f"--{field}" for field in vars(style.LIGHT)}
