"""A figure as a piece of HTML: inline SVG in the page's own text colour.

matplotlib writes a whole SVG document. Inside a page its declarations and metadata have no place,
its ids would collide with those of the next figure, and its ink must follow the page's light or
dark theme, so the text is adjusted here. Text stays text: it can be searched and read aloud.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from fp4lab.report.style import INK

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def inline_svg(figure: Figure, name: str, alt: str) -> Markup:
    """The figure as an `<svg>` element; `name` makes its ids unique, `alt` says what it shows."""
    import matplotlib
    from markupsafe import Markup, escape

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=NO_METADATA)
    opening, _, body = buffer.getvalue().partition("<svg")[2].partition(">")
    box = re.search(r'viewBox="[^"]*"', opening)
    assert box is not None
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = body.replace("xlink:href", "href").replace(INK, "currentColor")
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body)
    return Markup(f'<svg role="img" aria-label="{escape(alt)}" {box.group()}>{body.strip()}')
