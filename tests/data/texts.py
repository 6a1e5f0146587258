"""Texts for tests: words of a small vocabulary, and what is awkward to cut or to decode."""

from __future__ import annotations

import random
from pathlib import Path

#: runs of white space, line ends of both kinds, characters of 1 to 4 bytes, a special token
AWKWARD = (
    "   \n\n\t x\r\n  ;\n\n;  d\u00e9j\u00e0 vu \u3000 wide\u00a0space \U0001f600\U0001f600 it's "
    "we'll 12345 <|endoftext|> </s> e\u0301 \u2028 end."
)


def words(seed: int, count: int) -> str:
    """So many words and other things, the same for a seed."""
    draw = random.Random(seed)
    vocabulary = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(1, 7))) for _ in range(60)]
    parts = [*vocabulary, *vocabulary, AWKWARD, "\n", "def f(x):\n    return x\n", "caf\u00e9"]
    return " ".join(draw.choices(parts, k=count))


def write_texts(root: Path, *, files: int = 12, count: int = 120) -> Path:
    """A folder of text files, one of them empty and one a copy of another."""
    for index in range(files):
        path = root / f"part{index % 3}" / f"text{index}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(words(index, count).encode())
    (root / "empty.txt").touch()
    (root / "copy.txt").write_bytes(words(1, count).encode())
    return root
