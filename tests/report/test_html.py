"""The page stands alone, is well formed, escapes what it is given and shows everything."""

from __future__ import annotations

import dataclasses
import errno
import html
import json
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from fp4lab import recipes
from fp4lab.errors import InputError
from fp4lab.report import style, write
from fp4lab.report.digest import digest
from fp4lab.report.drawings import drawings
from fp4lab.report.folder import SUMMARY, read_findings
from fp4lab.report.html import render, short_diffs
from fp4lab.report.opening import opening
from fp4lab.report.summary import Summary

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Collects what the tests ask about, and fails on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.labels: list[str] = []
        self.cells: list[str] = []
        self.headings: list[int] = []
        self.words: dict[str, str] = {}
        self.id = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = {key: value or "" for key, value in attrs}
        self.id = values.get("id", "")
        self.ids += [self.id] if self.id else []
        self.links += [values[key] for key in ("href", "src", "xlink:href") if key in values]
        if tag == "svg":
            assert values["role"] == "img"
            self.labels.append(values["aria-labelledby"])
        if tag in {"h1", "h2", "h3", "h4", "h5", "h6"}:
            self.headings.append(int(tag[1]))
        if tag == "th":
            assert values["scope"] in {"row", "col"}
        if tag == "html":
            assert values["lang"] == "en"
        assert tag != "img"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th", "li", "p"):
            self.cells.append(data)
        if self.open and self.open[-1] in ("title", "desc") and self.id:
            self.words[self.id] = data


@pytest.fixture(scope="module")
def text(comparison_folder: Path) -> str:
    path = write(comparison_folder)
    assert path == comparison_folder / "report.html"
    return path.read_text(encoding="utf-8")


def test_nothing_outside_is_needed(text: str) -> None:
    page = Page(text)
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text)
    assert "link" not in page.tags
    assert "script" not in page.tags
    assert len(page.ids) == len(set(page.ids))
    assert {link[0] for link in page.links} == {"#"}
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(page.ids)
    assert "base64" not in text


def test_the_page_is_well_formed(text: str) -> None:
    page = Page(text)
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(page.headings))


def test_figures_have_words_with_their_numbers(text: str) -> None:
    page = Page(text)
    alts = {}
    for label in page.labels:
        title, alt = (page.words[one] for one in label.split())
        alts[title] = alt
    assert [*alts] == ["Gaps", "Loss curves", "Relative difference", "Where the error arises",
                       "Underflow"]  # fmt: skip
    gaps = "nvfp4 +0.1000 (95 % interval +0.0800 to +0.1200), mxfp4 +0.1500"
    assert alts["Gaps"] == f"Bars: final gap in nats to bf16: {gaps}."
    assert "bf16 1.6000, nvfp4 1.7000" in alts["Loss curves"]
    assert gaps in alts["Relative difference"]
    worst = "mxfp4 Y median 15.5, lowest 15.0 in blocks.0.mlp.<down>"
    assert worst in alts["Where the error arises"]
    assert "nvfp4 7.0 (X of blocks.0.mlp.up)" in alts["Underflow"]
    assert style.INK not in text.partition("</style>")[2]


def test_numbers_and_verdicts_are_there(text: str) -> None:
    cells = Page(text).cells
    for expected in ("+0.0800 to +0.1200", "1.43 (1.40 to 1.50)", "+6.25", "2.4526", "0.0020"):
        assert expected in cells
    assert (
        "nvfp4 against bf16: +0.1000 nats (+6.25 %), resolved (interval +0.0800 to +0.1200); larger"
        " than the spread of bf16 between seeds (standard deviation 0.0141)."
    ) in cells
    assert "mxfp4 against nvfp4: +0.0500 nats, unresolved (interval -0.0100 to +0.1100)." in cells
    assert "broken, seed 0, failed: NaN in <script>alert(1)</script>" in cells
    assert "killed by SIGKILL twice" in cells
    assert "mxfp4, seed 1, failed: killed by SIGKILL twice" in cells
    assert "25 tokens per parameter" in cells
    assert "2 (1 failed)" in cells


def test_the_first_words_say_what_was_trained(text: str) -> None:
    cells = Page(text).cells
    assert cells[0] == (
        "The model tiny (1,200 parameters) was trained for 200 steps on 25,000 tokens of stdlib"
        " under 4 recipes with 2 seeds each (0, 1), on a <fast> one & only."
    )
    assert text.index("The model tiny") < text.index("nvfp4 against bf16") < text.index("<table>")


def test_what_was_not_reached_stands_at_the_top(text: str) -> None:
    sentence = "Unreachable for mxfp4: attn.out_proj kept the model's own arithmetic"
    assert sentence in html.unescape(text[: text.index("<table>")])
    assert "its parent never calls it" in text


def test_what_the_runs_share_is_told_once(text: str) -> None:
    page = html.unescape(text)
    assert "The same for all 6 runs, which differ in recipe and seed only" in page
    assert 'role="note"' not in page
    for fact in ("torch</th><td>2.13.0", "optim.beta1</th><td>0.9", "git</th><td>–"):
        assert page.count(fact) == 1
    # told under Training, and by the recipes and seeds
    assert page.count(">steps</th>") == 1
    assert '<th scope="row">seed</th>' not in page


def test_what_the_runs_should_share_and_do_not_stands_above_the_results(
    comparison_folder: Path,
) -> None:
    found = read_findings(comparison_folder)
    warned = dataclasses.replace(found.summary, warnings=("torch: 1 in <a>, 2 in b.",))
    page = render(dataclasses.replace(found, summary=warned), [])
    box = page.index('role="note"')
    assert box < page.index("torch: 1 in &lt;a&gt;, 2 in b.") < page.index("nvfp4 against bf16")
    assert "which differ in recipe and seed and in what is said above" in page


def test_a_run_that_is_gone_is_not_counted(comparison_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(comparison_folder, tmp_path / "copy")
    shutil.rmtree(folder / "runs" / "nvfp4-seed1")
    assert "The same for all 5 runs" in write(folder).read_text(encoding="utf-8")


def test_a_changed_record_is_no_longer_the_same(comparison_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(comparison_folder, tmp_path / "copy")
    path = folder / "runs" / "nvfp4-seed1" / "environment.json"
    record = json.loads(path.read_text())
    record["environment"]["torch"] = "2.12.0"
    path.write_text(json.dumps(record))
    page = write(folder).read_text(encoding="utf-8")
    assert ">torch</th>" not in page
    assert ">threads</th>" in page


def test_recipes_are_shown_as_tables_with_their_source(text: str) -> None:
    page = html.unescape(text)
    for name in ("bf16", "nvfp4", "mxfp4"):
        assert str(recipes.get(name)) in page
        assert recipes.get(name).provenance in page
        assert f"recipe {name}: 1 converted" in page


def test_only_short_differences_are_shown(summary: Summary) -> None:
    long = dataclasses.replace(summary.recipes["mxfp4"], diff="\n".join(["a: b -> c"] * 9))
    shown = short_diffs(dataclasses.replace(summary, recipes=summary.recipes | {"mxfp4": long}))
    assert shown.keys() == {"nvfp4", "broken"}


def test_every_seed_is_shown(text: str) -> None:
    rows = [
        [*re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)]
        for row in re.findall(r"<tr>.*?</tr>", text[text.index("<h2>Every seed") :])
    ]
    rows = [row[:5] for row in rows]
    # gap 0.1 over the baseline's standard deviation of 0.02 / sqrt(2)
    assert ["nvfp4", "1.6900", "1.7100", "0.0141", "+7.1"] in rows
    assert ["bf16", "1.5900", "1.6100", "0.0141", "–"] in rows
    assert ["broken", "–", "–", "–", "–"] in rows


def test_words_and_times_are_explained(text: str) -> None:
    for word in ("resolved, unresolved", "one seed", "baseline", "diverged", "failed", "SQNR",
                 "relative MSE", "cosine", "gain", "underflow", "saturation"):  # fmt: skip
        assert f"<dt>{word}</dt>" in text
    assert "standard error over validation batches" in text
    assert "validation error" not in text
    assert "The step time is that of the\nemulation on cpu, not of 4-bit hardware." in text
    assert "one line for each seed" in text
    assert "running mean over 5 logged steps" in text
    assert "The baseline bf16 is left out" in text
    assert "(seed 0)" in text


def test_a_saturated_operand_has_a_map(comparison_folder: Path) -> None:
    found = read_findings(comparison_folder)
    assert [d.name for d in drawings(found)][-2:] == ["sqnr", "underflow"]
    errors = found.errors["nvfp4"]
    some = dataclasses.replace(errors.operands[0], saturation=0.01)
    cut = dataclasses.replace(errors, operands=(some, *errors.operands[1:]))
    found = dataclasses.replace(found, errors=found.errors | {"nvfp4": cut})
    assert [d.name for d in drawings(found)][-2:] == ["underflow", "saturation"]


def test_errors_that_are_not_finite_are_dashes(comparison_folder: Path) -> None:
    found = read_findings(comparison_folder)
    errors = found.errors["nvfp4"]
    none = dataclasses.replace(errors.products[0], relative_mse=None, cosine=None, gain=None)
    some = dataclasses.replace(errors, products=(none, *errors.products[1:]))
    found = dataclasses.replace(found, errors=found.errors | {"nvfp4": some})
    assert "<td>18.00</td><td>–</td><td>–</td><td>–</td></tr>" in render(found, [])


def test_a_folder_without_facts_is_still_drawn(comparison_folder: Path) -> None:
    found = dataclasses.replace(read_findings(comparison_folder), facts={})
    start = "The model was trained for ? steps under 4 recipes"
    assert opening(found).startswith(start)
    assert start in render(found, [])


def test_given_text_is_escaped(text: str) -> None:
    assert "<script>" not in text
    assert "a &lt;fast&gt; one &amp; only" in text
    assert "blocks.0.mlp.<down>" in Page(text).cells


def test_digest_names_the_worst_layer(comparison_folder: Path) -> None:
    rows = digest(read_findings(comparison_folder).errors)
    assert [(row.recipe, row.product) for row in rows[:4]] == [
        ("bf16", "Y"),
        ("bf16", "dX"),
        ("bf16", "dW"),
        ("nvfp4", "Y"),
    ]
    assert (rows[0].sqnr_db, rows[0].lowest_db, rows[0].layer) == (None, None, "")
    assert (rows[3].sqnr_db, rows[3].lowest_db) == (17.5, 17.0)
    assert rows[3].layer == "blocks.0.mlp.<down>"


def test_drawn_again_it_is_the_same(text: str, comparison_folder: Path) -> None:
    assert write(comparison_folder).read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("summary.json", "run the comparison again"),
        ("errors.json", "run the comparison again"),
        ("comparison.json", "restore a copy, or give a new folder"),
    ],
)
def test_a_damaged_file_is_named(
    name: str,
    cure: str,
    comparison_folder: Path,
    tmp_path: Path,
    broken: Callable[[str], Iterator[str]],
) -> None:
    folder = shutil.copytree(comparison_folder, tmp_path / "copy")
    whole = json.loads((folder / name).read_text())
    whole.pop("warnings", None)  # may be absent
    for text in broken(json.dumps(whole)):
        (folder / name).write_text(text)
        with pytest.raises(InputError) as caught:
            read_findings(folder)
        message = str(caught.value)
        assert str(folder / name) in message
        assert cure in message
        assert "\n" not in message


def test_a_full_disk_is_named(comparison_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write(comparison_folder)
    assert Path(caught.value.filename).name == "report.html"


def test_a_folder_without_a_comparison(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{SUMMARY} does not exist"):
        write(tmp_path)
