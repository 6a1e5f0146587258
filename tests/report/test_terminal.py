"""The table on the terminal."""

from __future__ import annotations

import io

from rich.console import Console

from fp4lab.report import table
from fp4lab.report.summary import Summary


def test_a_row_a_recipe(summary: Summary) -> None:
    out = io.StringIO()
    Console(file=out, width=140).print(table(summary))
    rows = {line.split()[1]: line for line in out.getvalue().splitlines() if line.startswith("│")}
    assert list(rows) == ["bf16", "nvfp4", "mxfp4", "broken"]
    for part in ("1.7000", "+0.1000", "+6.25", "+0.0800 to +0.1200", "1.43", "resolved"):
        assert part in rows["nvfp4"]
    assert "baseline" in rows["bf16"]
    assert "+0.0000" not in rows["bf16"]
    assert "failed: NaN in <script>alert(1)</script>" in rows["broken"]
    assert "95 % interval" in out.getvalue()
