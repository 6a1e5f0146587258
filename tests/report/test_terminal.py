"""The table on the terminal."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from fp4lab.report import needed, show, table, words
from fp4lab.report.summary import Summary

NUMBERS = ("1.7000", "+0.1000", "1.7500", "+0.1500")
VERDICTS = ("resolved", "baseline", "failed")


def printed(summary: Summary, width: int = 1000) -> str:
    out = io.StringIO()
    Console(file=out, width=1000).print(table(summary, width))
    return out.getvalue()


def test_a_row_a_recipe(summary: Summary) -> None:
    text = printed(summary)
    rows = {line.split()[1]: line for line in text.splitlines() if line.startswith("│")}
    assert list(rows) == ["bf16", "nvfp4", "mxfp4", "broken"]
    for part in ("1.7000", "+0.1000", "+6.25", "+0.0800 to +0.1200", "1.43", "resolved"):
        assert part in rows["nvfp4"]
    assert "baseline" in rows["bf16"]
    assert "+0.0000" not in rows["bf16"]
    assert "failed" in rows["broken"]
    assert "95 % interval" in text


@pytest.mark.parametrize("width", [120, 100, 80, 60, 50, 40, 20])
def test_numbers_and_verdicts_are_never_cut(summary: Summary, width: int) -> None:
    text = printed(summary, width)
    assert "…" not in text
    assert all(part in text for part in (*NUMBERS, *VERDICTS))
    widest = max(map(len, text.splitlines()))
    # what cannot be left out takes 45 characters
    assert widest <= max(width, 45)


def test_the_least_important_columns_go_first(summary: Summary) -> None:
    whole = needed(table(summary))
    assert "seeds" in printed(summary, whole)
    shown = printed(summary, whole - 1)
    assert "seeds" not in shown
    assert "gap (%)" in shown
    assert "interval" in printed(summary, 80)


@pytest.mark.parametrize("columns", ["20", "80", "300"])
def test_piped_it_is_whole_with_a_line_a_failed_run(
    summary: Summary,
    columns: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    show(summary)
    text = capsys.readouterr().out
    assert "…" not in text
    for part in (*NUMBERS, *VERDICTS, "+0.0800 to +0.1200", "2 (1 failed)"):
        assert part in text
    assert "broken, seed 0, failed: NaN in <script>alert(1)</script>" in text.splitlines()
    assert "mxfp4, seed 1, failed: killed by SIGKILL twice" in text.splitlines()


def with_seeds(summary: Summary, count: int) -> Summary:
    recipes = {
        name: dataclasses.replace(
            recipe,
            seeds=count,
            val_losses={str(i): recipe.val_loss + 0.01 * i for i in range(count)},
        )
        for name, recipe in summary.recipes.items()
        if recipe.val_loss is not None
    }
    order = tuple(name for name in summary.order if name in recipes)
    return dataclasses.replace(summary, recipes=recipes, order=order)


def test_what_few_seeds_mean(summary: Summary) -> None:
    one, two, three = (" ".join(words.findings(with_seeds(summary, n))) for n in (1, 2, 3))
    assert "neither an interval nor a spread between seeds; 3 or more are needed" in one
    assert "standard deviation" not in one
    assert "one degree of freedom (t factor 12.7); 3 or more are needed" in two
    assert "degree of freedom" not in three
    # 0.00, 0.01 and 0.02 nats apart
    spread = "larger than the spread of bf16 between seeds (standard deviation 0.0100)"
    assert three.count(f"; {spread}") == 2


def test_a_gap_within_the_spread_is_said_to_be(summary: Summary) -> None:
    spread = {"0": 1.4, "1": 1.8}
    recipes = summary.recipes | {
        "bf16": dataclasses.replace(summary.recipes["bf16"], val_losses=spread)
    }
    text = " ".join(words.findings(dataclasses.replace(summary, recipes=recipes)))
    assert text.count("not larger than the spread of bf16") == 2


def test_divergence_is_told(summary: Summary) -> None:
    recipes = summary.recipes | {
        "nvfp4": dataclasses.replace(
            summary.recipes["nvfp4"], verdict="diverged", diverged=(1,), val_loss=9.0
        ),
        "bf16": dataclasses.replace(summary.recipes["bf16"], diverged=(0,)),
    }
    wild = dataclasses.replace(summary, recipes=recipes)
    assert words.seeds(recipes["nvfp4"]) == "2 (1 diverged)"
    sentences = words.findings(wild)
    assert sentences[0] == "The baseline bf16 diverged, so the gaps to it say nothing."
    assert "nvfp4 against bf16: +0.1000 nats (+6.25 %), diverged" in sentences[1]
    assert "diverged" in printed(wild, 80)


def test_what_the_runs_should_share_and_do_not_comes_first(
    summary: Summary, capsys: pytest.CaptureFixture[str]
) -> None:
    show(summary)
    assert words.DIFFERENT not in capsys.readouterr().out
    show(dataclasses.replace(summary, warnings=("torch (environment): 1 in a, 2 in b.",)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [words.DIFFERENT, "  torch (environment): 1 in a, 2 in b."]
    assert lines[2].startswith("validation loss against bf16")
