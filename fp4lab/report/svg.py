"""A figure as a piece of HTML: inline SVG in the page's own text colour and font.

matplotlib writes a whole SVG document. Inside a page its declarations and metadata have no place,
its ids would collide with those of the next figure, its style sheet would reach the whole page, and
its ink must follow the page's light or dark theme, so the tree is adjusted here. Text stays text,
which can be searched and read aloud. Its places were measured in DejaVu Sans, which is wider than
the fonts that pages are shown in.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from fp4lab.report.style import INK

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
LINK = "{http://www.w3.org/1999/xlink}href"
#: pixels of CSS in an inch
PIXELS = 96
#: pixels of the smallest text, below which a figure scrolls rather than shrink
SMALLEST_TEXT = 9


def inline_svg(figure: Figure, name: str, *, title: str, alt: str) -> Markup:
    """The figure as an `<svg>` element that says in words what it shows.

    `name` makes its ids unique, `title` and `alt` are what is read aloud. It is at most as wide as
    drawn, so that text has one size in all figures, and no narrower than its text can be read.
    """
    import matplotlib
    from markupsafe import Markup

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=NO_METADATA)
    svg = ElementTree.fromstring(buffer.getvalue())
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', buffer.getvalue()))
    for parent in list(svg.iter()):
        for child in list(parent):
            if child.tag.endswith(("}style", "}metadata")):
                parent.remove(child)
    for element in svg.iter():
        _adjust(element, name, used)
    width = figure.get_figwidth() * PIXELS
    svg.attrib = {
        "role": "img",
        "aria-labelledby": f"{name}-title {name}-alt",
        "viewBox": svg.attrib["viewBox"],
        "style": f"max-width: {width:.0f}px; min-width: {_smallest_scale(figure) * width:.0f}px",
    }
    for index, (tag, text) in enumerate([("title", title), ("desc", alt)]):
        words = ElementTree.Element(tag, id=f"{name}-{'alt' if index else tag}")
        words.text = text
        svg.insert(index, words)
    return Markup(ElementTree.tostring(svg, encoding="unicode"))


def _smallest_scale(figure: Figure) -> float:
    from matplotlib.text import Text

    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]
    points = min(float(text.get_fontsize()) for text in texts)
    return min(1.0, SMALLEST_TEXT * 72 / (PIXELS * points))


def _adjust(element: ElementTree.Element, name: str, used: set[str]) -> None:
    """Make one element part of a page: no namespaces, own ids, the page's ink and font."""
    element.tag = element.tag.rpartition("}")[2]
    if element.tag != "text":
        element.text = None
    element.tail = None
    values = element.attrib
    if LINK in values:
        assert values[LINK].startswith("#"), "a picture inside the figure"
        values["href"] = f"#{name}-{values.pop(LINK)[1:]}"
    own = values.pop("id", "")
    if own in used:
        values["id"] = f"{name}-{own}"
    if own.startswith("QuadMesh"):
        values["shape-rendering"] = "crispEdges"  # or the ground shows between the tiles
    if "clip-path" in values:
        values["clip-path"] = values["clip-path"].replace("(#", f"(#{name}-")
    if "style" in values:
        values["style"] = _style(values["style"])
    if "rotate(-0 " in values.get("transform", ""):
        del values["transform"]
    for key in ("d", "x", "y", "transform"):
        if key in values:
            values[key] = " ".join(re.sub(r"\d+\.\d+", _short, values[key]).split())


def _style(declarations: str) -> str:
    """Without font families (matplotlib before 3.11 writes them into `font`), in the page's ink.

    >>> _style("font: 10px 'DejaVu Sans', sans-serif; fill: #1e2226")
    'font-size:10px;fill:currentColor'
    """
    sized = re.sub(r"font:[^;]*?([\d.]+px)[^;]*", r"font-size: \1", declarations)
    bare = re.sub(r"font-family:[^;]*;\s*", "", sized)
    return re.sub(r"([:;]) ", r"\1", bare).replace(INK, "currentColor")


def _short(number: re.Match[str]) -> str:
    """Two decimals: a hundredth of a point cannot be seen."""
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
