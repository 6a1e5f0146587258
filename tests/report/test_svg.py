"""What a figure becomes inside a page."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from fp4lab.report import gap_bars, read_findings, sqnr_map, style
from fp4lab.report.summary import Summary
from fp4lab.report.svg import inline_svg


def test_words_are_there_escaped(summary: Summary) -> None:
    svg = inline_svg(gap_bars(summary), "gaps", title="<Gaps>", alt='a "b" & c')
    tree = ElementTree.fromstring(svg)
    assert tree.attrib["role"] == "img"
    told = {child.attrib["id"]: child.text for child in tree[:2]}
    assert told == {"gaps-title": "<Gaps>", "gaps-alt": 'a "b" & c'}
    assert tree.attrib["aria-labelledby"].split() == [*told]


def test_text_stays_text_in_the_ink_and_font_of_the_page(summary: Summary) -> None:
    svg = inline_svg(gap_bars(summary), "gaps", title="", alt="")
    texts = [element.text for element in ElementTree.fromstring(svg).iter("text")]
    assert {"nvfp4", "mxfp4", "+0.1000 (+6.25 %)"} <= set(texts)
    assert "currentColor" in svg
    assert style.INK not in svg
    assert "font-family" not in svg
    assert "<style" not in svg


def test_ids_of_two_figures_differ_and_are_found(summary: Summary) -> None:
    pair = [inline_svg(gap_bars(summary), name, title="", alt="") for name in ("a", "b")]
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in pair]
    assert len(ids[0]) == len(ids[1]) > 2
    assert not ids[0] & ids[1]
    for svg, own in zip(pair, ids, strict=True):
        used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg))
        assert {one for both in used for one in both if one} <= own


def test_a_figure_is_as_wide_as_drawn_or_as_its_text_can_be_read(summary: Summary) -> None:
    figure = gap_bars(summary)
    svg = inline_svg(figure, "gaps", title="", alt="")
    width = 96 * float(figure.get_figwidth())
    # text of 10 points, 13 1/3 pixels, may shrink to 9
    assert f"max-width: {width:.0f}px; min-width: {width * 9 / 13.3333:.0f}px" in svg


def test_a_map_is_drawn_without_a_picture_and_is_small(comparison_folder: Path) -> None:
    errors = read_findings(comparison_folder).errors
    svg = inline_svg(sqnr_map({"nvfp4": errors["nvfp4"]}), "sqnr", title="", alt="")
    assert "data:" not in svg
    assert "<image" not in svg
    # 18 cells and 32 shades of the bar, each with its path, and 18 numbers, below 200 bytes each
    assert len(svg) < 200 * (18 + 32 + 18 + 40)
