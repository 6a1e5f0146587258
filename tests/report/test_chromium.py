"""The page as Chromium shows and prints it: on a phone and a desk, light and dark, and on paper."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from fp4lab.report import read_findings, style
from fp4lab.report.drawings import drawings
from fp4lab.report.html import render
from tests.report import chromium
from tests.report.chromium import Browser, Scheme

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.installed() is None, reason="needs Chromium on the PATH"),
]

WINDOWS = [(360, "light"), (360, "dark"), (1280, "light"), (1280, "dark")]
#: pixels of CSS between the margins of A4: 210 mm less twice 14
PAPER = 688
OPEN = "document.querySelectorAll('details').forEach(one => one.open = true)"
#: elements that stick out of the page, those in a box that scrolls left out
SPILLED = """
[...document.querySelectorAll('main *')].filter(one =>
  one.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5
  && (one.matches('.scroll') || !one.closest('.scroll'))).map(one => one.outerHTML.slice(0, 80))
"""
#: what is too wide for the box that it scrolls in
SCROLLED = """
[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth)
  .map(one => [one.ariaLabel, getComputedStyle(one).overflowX])
"""
#: every piece of text: its colour, the ground below it, and the text
TEXTS = """
(() => {
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), own = walker.currentNode.parentElement;
    if (!text || ['title', 'desc'].includes(own.tagName)) continue;
    let below = own;
    while (below && getComputedStyle(below).backgroundColor === 'rgba(0, 0, 0, 0)')
      below = below.parentElement;
    const shown = getComputedStyle(own);
    found.push([own.tagName === 'text' ? shown.fill : shown.color,
                getComputedStyle(below || document.body).backgroundColor, text]);
  }
  return found;
})()
"""
FIGURES = """
[...document.querySelectorAll('figure svg')].map(one => {
  const box = one.getBoundingClientRect(), texts = [...one.querySelectorAll('text')];
  return {width: box.width, height: box.height, left: box.left,
    texts: texts.length, smallest: Math.min(...texts.map(t =>
      parseFloat(getComputedStyle(t).fontSize) * box.width / one.viewBox.baseVal.width)),
    outside: texts.filter(t => t.getBoundingClientRect().right > box.right + 1).length};
})
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium.running(tmp_path_factory.mktemp("chromium") / "profile") as running:
        yield running


@pytest.fixture(scope="module")
def page(comparison_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with everything that one can have."""
    found = read_findings(comparison_folder)
    warned = dataclasses.replace(found.summary, warnings=("torch: 1 in a, 2 in the other 5 runs.",))
    found = dataclasses.replace(found, summary=warned)
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(found, list(drawings(found))), encoding="utf-8")
    return path


def luminance(colour: str) -> float:
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    return style.luminance((red, green, blue))


@pytest.mark.parametrize(("width", "scheme"), WINDOWS)
def test_nothing_is_wider_than_the_window(
    browser: Browser, page: Path, width: int, scheme: Scheme
) -> None:
    browser.open(page, width=width, scheme=scheme)
    for _ in range(2):
        assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        assert browser.value(SPILLED) == []
        browser.value(OPEN)
    wide = dict(browser.value(SCROLLED))
    assert set(wide.values()) == {"auto"}
    assert ("Results" in wide) == (width == 360)


@pytest.mark.parametrize(("width", "scheme"), WINDOWS)
def test_figures_are_seen(browser: Browser, page: Path, width: int, scheme: Scheme) -> None:
    browser.open(page, width=width, scheme=scheme)
    figures: list[dict[str, Any]] = browser.value(FIGURES)
    assert len(figures) == 5
    for figure in figures:
        assert figure["width"] >= 300
        assert figure["height"] >= 80
        assert figure["left"] >= 0
        assert figure["texts"] > 5
        assert figure["outside"] == 0
        assert figure["smallest"] >= 8.99


@pytest.mark.parametrize(("width", "scheme"), WINDOWS)
def test_all_text_can_be_read(browser: Browser, page: Path, width: int, scheme: Scheme) -> None:
    """4.5:1, as WCAG 2.2 asks; numbers on tiles are black or white, see test_style.py."""
    browser.open(page, width=width, scheme=scheme)
    browser.value(OPEN)
    texts = browser.value(TEXTS)
    assert len(texts) > 200
    tiles = {"rgb(0, 0, 0)", "rgb(255, 255, 255)"}
    for colour, ground, text in texts:
        if colour not in tiles:
            low, high = sorted([luminance(colour), luminance(ground)])
            assert (high + 0.05) / (low + 0.05) >= 4.5, (colour, ground, text)


@pytest.mark.parametrize(("width", "scheme"), WINDOWS)
def test_the_ground_follows_the_reader(
    browser: Browser, page: Path, tmp_path: Path, width: int, scheme: Scheme
) -> None:
    browser.open(page, width=width, scheme=scheme)
    browser.screenshot(tmp_path / "seen.png")
    seen = imread(tmp_path / "seen.png")[..., :3]
    assert seen.shape[1] == width
    ground = (style.DARK if scheme == "dark" else style.LIGHT).ground
    expected = [int(ground[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    for corner in (seen[0, 0], seen[-1, 0]):
        assert corner == pytest.approx(expected, abs=1 / 255)
    # and something is written on it
    assert (abs(seen - expected).max(axis=-1) > 0.5).mean() > 0.01


@pytest.mark.parametrize("width", [360, 1280])
def test_the_first_screen_has_the_answer(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width, scheme="light", height=780)
    bottom = """
    [...document.querySelectorAll('.findings li')].find(one => one.innerText.startsWith('nvfp4'))
      .getBoundingClientRect().bottom
    """
    assert browser.value(bottom) <= 780


def test_on_paper_all_is_light_and_whole(browser: Browser, page: Path, tmp_path: Path) -> None:
    browser.open(page, width=PAPER, scheme="dark", medium="print")
    ground = browser.value("getComputedStyle(document.body).backgroundColor")
    assert luminance(ground) == 1.0
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    assert browser.value(SPILLED) == []
    assert browser.value(SCROLLED) == []
    link = browser.value("getComputedStyle(document.querySelector('a')).color")
    assert 1.05 / (luminance(link) + 0.05) >= 4.5
    browser.open(page, width=1280, scheme="dark")
    browser.pdf(tmp_path / "paper.pdf")
    pages = re.findall(rb"/Type\s*/Page\b(?!s)", (tmp_path / "paper.pdf").read_bytes())
    assert 3 <= len(pages) <= 20


def test_the_whole_page_is_one_file(browser: Browser, page: Path) -> None:
    browser.open(page, width=1280, scheme="light")
    assert browser.value("performance.getEntriesByType('resource').length") == 0
    assert browser.value("document.compatMode") == "CSS1Compat"
