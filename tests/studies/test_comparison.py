"""Whole comparisons of a tiny module: results, reuse, refusals, deaths."""

from __future__ import annotations

import dataclasses
import html
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from study_fakes import KillingBatches, build_classifier, classified_batch
from torch import Tensor, nn

from fp4lab import formats
from fp4lab.errors import InputError
from fp4lab.recipes import LinearRecipe, Recipe, get
from fp4lab.report.summary import Summary
from fp4lab.studies import Comparison, compare, cross_entropy
from fp4lab.train.config import FitConfig

pytestmark = pytest.mark.usefixtures("few_rounds")

CONFIG = FitConfig(steps=6, eval_every=3, checkpoint_every=2, device="cpu", threads=1)
VALIDATION = [classified_batch(1000 + index) for index in range(3)]
#: blocks of 128 do not fit a module of 32 and 64
MISFIT = Recipe(name="misfit", linear=LinearRecipe.uniform(formats.FP8_1X128_E4M3))
#: its runs end with a NaN where the loss is `poisoned`
NAN = Recipe(name="nan", linear=LinearRecipe.uniform(formats.MXFP8_E4M3))


def poisoned(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    first = model.get_submodule("0")
    factor = float("nan") if getattr(first, "recipe", None) == NAN.linear else 1.0
    return factor * cross_entropy(model, batch)


def scaled(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return 5 * cross_entropy(model, batch)


def build_smooth_classifier() -> nn.Module:
    """The same weights as those of the other classifier, in another model."""
    first, _, last = build_classifier()
    return nn.Sequential(first, nn.GELU(), last)


def quietly(**arguments: Any) -> tuple[Comparison, str]:
    """A comparison in this process (a lambda cannot be sent), and what it printed."""
    out = io.StringIO()
    defaults: dict[str, Any] = {
        "validation": VALIDATION,
        "config": CONFIG,
        "console": Console(file=out, width=300),
    }
    batches = arguments.pop("batches", lambda index: classified_batch(index))  # noqa: PLW0108
    chosen = arguments.pop("recipes", ["bf16", "mxfp4"])
    build = arguments.pop("build_model", build_classifier)
    found = compare(build, batches, chosen, **{**defaults, **arguments})
    return found, out.getvalue()


@pytest.fixture(autouse=True)
def without_report(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than training here; tests that look at the page ask for it."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("fp4lab.report.write", lambda folder: folder)


@pytest.fixture
def drawn() -> None:
    """Asks for the report."""


def results(folder: Path) -> dict[str, int]:
    return {p.parent.name: p.stat().st_mtime_ns for p in folder.glob("runs/*/result.json")}


@pytest.mark.usefixtures("drawn")
def test_a_module_of_ones_own(tmp_path: Path) -> None:
    found, said = quietly(out=tmp_path, recipes=["bf16", "nvfp4_base", "mxfp4"])
    assert "one run after another in this process" in said
    assert "lambda" in said
    assert re.search(r"timing the recipes in turn, for about \d s\n", said)
    assert said.splitlines()[-1] == f"report: {found.report}"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary == json.loads(json.dumps(dataclasses.asdict(found.summary)))
    assert summary["baseline"] == "bf16"
    assert sorted(summary["order"]) == ["bf16", "mxfp4", "nvfp4_base"]
    recipe = summary["recipes"]["mxfp4"]
    assert recipe["verdict"] == "one seed: no interval"
    assert (recipe["interval"], recipe["seeds"], recipe["failed"]) == (None, 1, [])
    losses = {name: entry["val_losses"]["0"] for name, entry in summary["recipes"].items()}
    assert recipe["gap"] == losses["mxfp4"] - losses["bf16"] != 0
    assert recipe["gap_percent"] == pytest.approx(100 * recipe["gap"] / losses["bf16"])
    assert recipe["step_time_ratio"] > 0
    assert summary["recipes"]["bf16"]["step_time_ratio"] == 1
    assert recipe["validation_error"] > 0
    errors = json.loads((tmp_path / "errors.json").read_text())["recipes"]["mxfp4"]
    assert {row["layer"] for row in errors["operands"]} == {"0", "2"}
    assert "mxfp4" in str(found)
    narrow = Console(file=io.StringIO(), width=60)
    with narrow.capture() as captured:
        narrow.print(found)
    for text in (str(found), captured.get()):
        assert "…" not in text
        assert f"{recipe['gap']:+.4f}" in text
    assert "mxfp4" in found._repr_html_()
    # One seed has no interval, which the table, the findings and the page say.
    page = html.unescape(found.report.read_text())
    assert "interval" not in str(found).replace("one seed: no interval", "")
    assert str(found).count("one seed: no interval") == 2
    assert f"mxfp4 against bf16: {recipe['gap']:+.4f} nats" in page
    assert f"({recipe['gap_percent']:+.2f} %), one seed: no interval." in page
    assert page.count('<td class="word">one seed: no interval</td>') == 2
    assert page.count("<svg ") >= 3


def first_losses(folder: Path) -> dict[str, float]:
    lines = {
        path.parent.name: path.read_text().splitlines()[0]
        for path in folder.glob("runs/*/metrics.jsonl")
    }
    return {name: json.loads(line)["loss"] for name, line in lines.items()}


def test_runs_of_a_seed_start_alike(tmp_path: Path) -> None:
    """Equal recipes have equal first losses, bit for bit; another seed starts elsewhere."""
    plain = Recipe(name="plain", linear=LinearRecipe())
    twin = Recipe(name="twin", linear=LinearRecipe())
    found, _ = quietly(out=tmp_path, recipes=[plain, twin], seeds=2)
    first = first_losses(tmp_path)
    assert first["plain-seed0"] == first["twin-seed0"] != first["plain-seed1"]
    assert first["plain-seed1"] == first["twin-seed1"]
    summary = found.summary.recipes["twin"]
    assert (summary.gap, summary.interval, summary.verdict) == (0.0, (0.0, 0.0), "unresolved")
    assert summary.seeds == 2
    assert "no numeric difference" in summary.diff


def test_what_is_finished_is_used_again_and_more_may_be_added(tmp_path: Path) -> None:
    first, _ = quietly(out=tmp_path)
    before = results(tmp_path)
    again, said = quietly(out=tmp_path)
    assert "2 of 2 runs are finished already" in said
    assert results(tmp_path) == before
    assert again.summary == first.summary
    more, said = quietly(out=tmp_path, recipes=["bf16", "mxfp4", "nvfp4_base"], seeds=2)
    assert "2 of 6 runs are finished already" in said
    after = results(tmp_path)
    assert len(after) == 6
    assert {name: after[name] for name in before} == before
    old = first.summary.recipes["mxfp4"].val_losses["0"]
    assert more.summary.recipes["mxfp4"].val_losses["0"] == old
    assert more.summary.recipes["mxfp4"].interval is not None
    fewer, said = quietly(out=tmp_path)
    assert "holds 4 more, which this report leaves out: bf16-seed1, mxfp4-seed1, nvfp4_" in said
    assert fewer.summary.recipes["mxfp4"].val_losses == first.summary.recipes["mxfp4"].val_losses
    assert results(tmp_path) == after


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"steps": 7}, r"steps \(6, now 7\)"),
        ({"learning_rate": 0.5}, r"optim.learning_rate \(0.003, now 0.5\)"),
        ({"batches": lambda index: classified_batch(index + 1)}, "first batch"),
        ({"validation": VALIDATION[1:]}, "first validation batch"),
        ({"loss": scaled}, "loss of the first batch"),
        ({"build_model": build_smooth_classifier}, "loss of the first batch"),
        ({"recipes": ["bf16", Recipe(name="mxfp4", linear=LinearRecipe())]}, "recipe mxfp4"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(
    change: dict[str, Any], named: str, tmp_path: Path, finished: Path
) -> None:
    with pytest.raises(InputError, match=rf"differs in {named}.*give another folder"):
        quietly(out=finished, **change)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    quietly(out=folder)
    return folder


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("comparison.json", "restore a copy, or give a new folder"),
        ("timing.json", "delete it"),
        ("runs/mxfp4-seed0/measures.json", "delete it"),
        ("runs/mxfp4-seed0/result.json", "delete it"),
        ("runs/mxfp4-seed0/environment.json", "restore a copy"),
    ],
)
def test_a_damaged_file_is_named(
    name: str,
    cure: str,
    finished: Path,
    tmp_path: Path,
    broken: Callable[[str], Iterator[str]],
) -> None:
    folder = shutil.copytree(finished, tmp_path / "copy")
    whole = json.loads((folder / name).read_text())
    for optional in ("resumed", "unreachable"):  # may be absent
        whole.pop(optional, None)
    for text in broken(json.dumps(whole)):
        (folder / name).write_text(text)
        with pytest.raises(InputError) as caught:
            quietly(out=folder)
        message = str(caught.value)
        assert str(folder / name) in message
        assert cure in message
        assert "\n" not in message


def test_threads_stay_those_of_the_first_call(finished: Path) -> None:
    _, said = quietly(out=finished, config=dataclasses.replace(CONFIG, threads=2))
    assert "threads of a run stay at 1" in said
    assert "2 of 2 runs are finished already" in said


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"holds 'thesis.tex' and no comparison"):
        quietly(out=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "thesis.tex"]


def test_one_failing_recipe_leaves_the_others(tmp_path: Path) -> None:
    found, said = quietly(out=tmp_path, recipes=["bf16", NAN, "mxfp4"], loss=poisoned)
    assert "nan-seed0 failed: NonFiniteError: step 1: loss=nan" in said
    failed = found.summary.recipes["nan"]
    assert failed.verdict == "failed"
    assert failed.failed[0].reason.startswith("NonFiniteError: step 1: loss=nan")
    assert found.summary.order[-1] == "nan"
    assert found.summary.recipes["mxfp4"].gap is not None


@pytest.mark.usefixtures("drawn")
def test_without_the_baseline_there_are_no_gaps(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        quietly(out=tmp_path, recipes=["mxfp4", NAN], baseline="nan", loss=poisoned)
    message = str(caught.value)
    assert message.startswith("baseline='nan' failed, so nothing can be compared; seed 0: ")
    assert f"what finished is in {tmp_path / 'report.html'}" in message
    summary = Summary.read(tmp_path / "summary.json")
    mxfp4 = summary.recipes["mxfp4"]
    assert (mxfp4.gap, mxfp4.verdict) == (None, "no gap: the baseline failed")
    assert mxfp4.step_time_ratio is None
    page = html.unescape((tmp_path / "report.html").read_text())
    assert "The baseline nan failed" in page
    assert summary.recipes["nan"].failed[0].reason in page
    assert summary.recipes["nan"].failed[0].reason in message


def test_a_nan_ends_one_run_with_its_place(tmp_path: Path) -> None:
    def explodes(index: int) -> tuple[Tensor, Tensor]:
        x, y = classified_batch(index)
        return (x.fill_(float("nan")) if index == 4 else x), y

    with pytest.raises(InputError, match=r"'bf16' failed, .* seed 0: NonFiniteError: step 5"):
        quietly(out=tmp_path, batches=explodes)


def test_interrupted_it_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    whole, _ = quietly(out=tmp_path / "whole")

    class Interrupt:
        """Ctrl-C at one batch, once."""

        armed = True

        def __call__(self, index: int) -> tuple[Tensor, Tensor]:
            if index == 3 and self.armed:
                Interrupt.armed = False
                raise KeyboardInterrupt
            return classified_batch(index)

    interrupted = Interrupt()
    broken = {"out": tmp_path / "broken", "batches": interrupted}
    with pytest.raises(KeyboardInterrupt):
        quietly(**broken)
    assert not (tmp_path / "broken" / "summary.json").exists()
    resumed, _ = quietly(**broken)
    for name in ("bf16", "mxfp4"):
        assert resumed.summary.recipes[name].val_losses == whole.summary.recipes[name].val_losses
    assert resumed.errors == whole.errors


def test_without_validation_some_batches_are_held_out(tmp_path: Path) -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    batches = [classified_batch(index) for index in range(20)]
    ends: dict[str, dict[str, Any]] = {
        "of a sequence": {"batches": batches, "validation": None},
        "the same, given": {"batches": batches[:18], "validation": batches[18:]},
        "of a function": {"validation": None},
        "that, given": {"validation": [classified_batch(index) for index in range(6, 14)]},
    }
    losses = [
        quietly(out=tmp_path / name, loss=loss, **arguments)[0].summary.recipes["bf16"].val_loss
        for name, arguments in ends.items()
    ]
    assert losses[0] == losses[1] != losses[2] == losses[3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recipes": ["bf16", "nvfp5"]}, "'nvfp5' is not known"),
        ({"recipes": ["bf16", formats.NVFP4]}, r"recipes=.* is not a Recipe; .*formats\.register"),
        ({"recipes": "bf16"}, r"recipes='bf16' is one string; give a list, such as \['bf16'\]"),
        ({"recipes": []}, "recipes='' leaves nothing to compare; .* add bf16"),
        ({"recipes": ["nvfp4"]}, "recipes='nvfp4' leaves nothing to compare; .* add bf16"),
        ({"recipes": ["bf16"]}, "recipes='bf16' leaves nothing to compare; .* add nvfp4"),
        ({"recipes": ["bf16", "bf16"]}, "'bf16' twice"),
        ({"recipes": [Recipe(name="a/b", linear=LinearRecipe())]}, "cannot name a folder"),
        ({"baseline": "fp8_block"}, "baseline='fp8_block' is none of the recipes"),
        ({"seeds": 0}, "seeds=0 is below 1"),
        ({"jobs": 0}, "jobs=0 is below 1"),
        ({"confidence": 95.0}, "confidence=95.0 must lie between 0 and 1"),
        ({"batches": iter([])}, "neither a function of the index nor a sequence"),
        ({"batches": []}, "batches is empty"),
        ({"batches": [classified_batch(0)], "validation": None}, "validation none"),
        ({"validation": []}, "validation is empty"),
        ({"batches": lambda index: torch.randn(64, 32)}, "first batch differs from call to call"),
        ({"validation": lambda index: torch.randn(64, 32)}, "first validation batch differs from"),
        ({"loss": lambda model, batch: model(batch[0])}, r"shape \(64, 32\) is not one number"),
        (
            {"batches": [(x, y.float()) for x, y in VALIDATION]},
            r"targets of a batch are torch\.float32, and .* class indices.*or loss=",
        ),
        (
            {"batches": [(x, y.tolist()) for x, y in VALIDATION]},
            "targets of a batch are list, and cross_entropy takes class indices",
        ),
        ({"batches": [(x[:48], y[:48]) for x, y in VALIDATION]}, "'mxfp4' cannot.* 48 tokens"),
        ({"config": dataclasses.replace(CONFIG, threads=10**5)}, "threads=100000 is above the"),
        ({"config": dataclasses.replace(CONFIG, device="cuda")}, "device='cuda' is not available"),
        ({"recipes": ["bf16", MISFIT]}, "recipe 'misfit' cannot train this model: layer '0'.*128"),
        ({"recipes": ["bf16", "nvfp4_last4"]}, "recipe 'nvfp4_last4' cannot train this model"),
        (
            {"recipes": [get("bf16").switch(MISFIT, at=5), "mxfp4"]},
            "recipe 'bf16' cannot train.*128",
        ),
        (
            {"recipes": [get("bf16").switch(MISFIT, at="decay"), "mxfp4"]},
            "recipe 'bf16' cannot train.*128",
        ),
    ],
)
def test_bad_arguments_leave_no_folder(
    arguments: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=message):
        quietly(out=tmp_path / "new", **arguments)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_class_indices_of_any_integer_type(dtype: torch.dtype) -> None:
    x, y = VALIDATION[0]
    model = build_classifier()
    assert torch.equal(cross_entropy(model, (x, y.to(dtype))), cross_entropy(model, (x, y)))


def test_a_switch_after_the_last_step_need_not_fit(tmp_path: Path) -> None:
    found, _ = quietly(out=tmp_path, recipes=[get("bf16").switch(MISFIT, at=6), "mxfp4"])
    assert found.summary.recipes["bf16"].failed == ()


def test_batches_that_fill_no_block_are_padded_when_asked(tmp_path: Path) -> None:
    def batches(index: int) -> tuple[Tensor, Tensor]:
        x, y = classified_batch(index)
        return x[:40], y[:40]

    found, _ = quietly(out=tmp_path, batches=batches, recipes=["bf16", "nvfp4"], ragged="pad")
    assert found.summary.recipes["nvfp4"].gap is not None


def test_two_at_once_are_kept_apart(tmp_path: Path) -> None:
    messages: list[str] = []

    def nested(index: int) -> tuple[Tensor, Tensor]:
        if index == 5 and not messages:
            with pytest.raises(InputError) as error:
                quietly(out=tmp_path)
            messages.append(str(error.value))
        return classified_batch(index)

    quietly(out=tmp_path, batches=nested)
    assert "is in use by a comparison that is still going" in messages[0]


@pytest.mark.slow
def test_a_killed_run_ends_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes; one of them is killed by SIGKILL half-way through its first life."""
    arguments: dict[str, Any] = {"validation": VALIDATION, "config": CONFIG, "jobs": 2}
    console = Console(file=io.StringIO(), width=300)
    with monkeypatch.context() as here:
        here.setattr("fp4lab.studies.study.unpicklable", lambda work: "the test says so")
        whole = compare(build_classifier, classified_batch, ["bf16", "mxfp4"],
                        out=tmp_path / "whole", console=console, **arguments)  # fmt: skip
    said = io.StringIO()
    killing = KillingBatches(tmp_path / "marker", at=4)
    found = compare(build_classifier, killing, ["bf16", "mxfp4"], out=tmp_path / "killed",
                    console=Console(file=said, width=300), **arguments)  # fmt: skip
    assert "killed by SIGKILL; continuing from its checkpoint" in said.getvalue()
    assert found.summary.recipes["mxfp4"].failed == ()
    for name in ("bf16", "mxfp4"):
        assert found.summary.recipes[name].val_losses == whole.summary.recipes[name].val_losses
    assert found.errors == whole.errors
    resumed = [p for p in tmp_path.glob("killed/logs/*.txt") if "resumed from" in p.read_text()]
    assert len(resumed) == 1


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from study_fakes import build_classifier, classified_batch\n"
        "from fp4lab.studies import compare\n"
        "from fp4lab.train.config import FitConfig\n"
        "compare(build_classifier, classified_batch, ['bf16', 'nvfp4'], steps=2, out=sys.argv[1])\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("fp4lab.errors.InputError: baseline='bf16' failed, so nothing can be")
    assert 'put the call under `if __name__ == "__main__":`' in last
    assert done.stderr.count("Traceback") == 1
