"""Docstrings as Markdown: examples are code, and `<` is no HTML.

griffe finds examples only in a section of their own, and our docstrings have none.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

#: prompts, what they print, and blank lines only between two prompts
_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*|\n\1 +\S.*)*(?:\n\n\1>>> .*(?:\n\1 *\S.*)*)*", re.M)
#: what is shown as it stands: fences, and code within a line
_CODE = re.compile(r"(```.*?```|`[^`]*`)", re.DOTALL)


def markdown(text: str) -> str:
    """The text with every example in a fence, `<` escaped outside of code, and members a section.

    >>> print(markdown("a < b.\n\n>>> 1 < 2\nTrue\n\nDone.").replace("`", "'"))
    a &lt; b.
    <BLANKLINE>
    '''pycon
    >>> 1 < 2
    True
    '''
    <BLANKLINE>
    Done.
    """
    text = text.replace("\nMembers:\n", "\nAttributes:\n")
    text = _EXAMPLE.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text)
    parts = _CODE.split(text)
    parts[::2] = [part.replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts)


class Markdown(griffe.Extension):
    """Makes Markdown of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
