"""`fp4lab bench` from its options to its files, on one quick row."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fp4lab import cli
from fp4lab.bench import command, peer_rows, peers
from fp4lab.bench.measure import measure

QUICK = ("bench", "--size", "128", "--ops", "cast e4m3")


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure.__kwdefaults__, "least_s", 1e-4)


def test_it_prints_and_writes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main([*QUICK, "--out", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert "cast e4m3, bfloat16" in out
    assert err == f"1/1 {'cast e4m3':<40}\n"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"bench.json", "roofline.png"}
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    names = [row["name"] for row in found["rows"]]
    assert names in (
        ["cast e4m3, float32", "cast e4m3, new result, float32", "cast e4m3, bfloat16"],
        ["cast e4m3, float32", "cast e4m3, bfloat16"],
    )
    assert found["stopped"] == ""
    assert found["settings"] == {
        "size": 128,
        "rounds": 5,
        "device": "cpu",
        "clock": "CPU time",
    }
    assert found["machine"]["backend"] in ("native", "torch")
    assert found["machine"]["torch"] == torch.__version__


def test_the_json_may_have_its_own_place(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    assert cli.main([*QUICK, "--json", str(path), "--out", str(tmp_path / "out")]) == 0
    assert json.loads(path.read_text())["missing"] == {}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"roofline.png"}


def test_the_json_may_take_the_place_of_the_tables(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main([*QUICK, "--json", "-", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["missing"] == {}
    assert f"roofline: {tmp_path}/roofline.png\n" in err
    assert [path.name for path in tmp_path.iterdir()] == ["roofline.png"]


def test_an_interrupt_shows_what_was_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    rows = {row.name: row for row in command.all_rows()}
    stop = replace(rows["cast e5m2"], job=interrupt)
    cast, later = rows["cast e4m3"], rows["cast e2m3"]
    monkeypatch.setattr(command, "all_rows", lambda *, gpu: [cast, stop, later])
    words = ["bench", "--size", "128", "--json", str(tmp_path / "found.json")]
    assert cli.main(words) == cli.INTERRUPTED
    out = capsys.readouterr().out
    assert "cast e4m3, float32" in out
    assert "interrupted at 'cast e5m2'" in out
    assert "cast e2m3" not in out
    assert json.loads((tmp_path / "found.json").read_text())["stopped"] == "cast e5m2"


def test_peers_that_are_not_installed_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peers.Peer(name="it", module="absent_package", install="pip install it", works=list)
    monkeypatch.setattr(peer_rows.rows, "__defaults__", ((peer,),))
    assert cli.main([*QUICK, "--peers"]) == 0
    assert "not compared: it: not installed; pip install it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ops", "cats"], "ops='cats' picks no row; did you mean 'cast'"),
        (
            ["--size", "100"],
            "size=100 is not a multiple of 128, the largest block; give 128 or 4096",
        ),
        (["--repeats", "4"], "repeats=4 is below 5; give that or more"),
        (["--threads", "0"], "threads=0 should be 1 to "),
        (["--threads", "100000"], "threads=100000 should be 1 to "),
        (["--device", "tpu"], "invalid choice 'tpu'"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    words: list[str], message: str, refused: Callable[..., str]
) -> None:
    assert message in refused("bench", *words)


@pytest.mark.parametrize("argument", ["json", "out"])
def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(
    argument: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(command, "measure_rows", None)
    (tmp_path / "file").write_text("mine")
    path = tmp_path / "file" / "found"
    assert cli.main([*QUICK, f"--{argument}", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"fp4lab: {argument}: '{path}")
    assert "cannot be written (" in err
    assert err.endswith("); give a path in a folder where files can be made\n")


def test_what_lies_there_is_kept_until_it_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "measure_rows", interrupted)
    (tmp_path / "bench.json").write_text("before")
    assert cli.main([*QUICK, "--out", str(tmp_path)]) == cli.INTERRUPTED
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]
    assert (tmp_path / "bench.json").read_text() == "before"


@pytest.mark.parametrize(
    ("version", "cause"), [(None, "is built without CUDA"), ("13.0", "finds no GPU")]
)
def test_a_missing_gpu_is_told_with_the_cure(
    version: str | None,
    cause: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", version)
    assert cli.main(["bench", "--device", "cuda"]) == 2
    err = capsys.readouterr().err
    assert f"device='cuda': torch {torch.__version__} {cause}; use --device cpu" in err


def test_the_options_reach_the_setting() -> None:
    given = command.BenchArguments(size=256, repeats=7)
    setting = command.checked(given)
    assert (setting.size, setting.rounds, setting.threads) == (256, 7, 1)
    assert setting.device == torch.device("cpu")


def test_drawing_and_peers_are_imported_only_where_they_are_used() -> None:
    code = (
        "import sys, fp4lab.bench.command, fp4lab.bench.peer_rows; "
        "sys.exit(bool({'matplotlib', 'torchao', 'mx'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.gpu
def test_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*QUICK, "--device", "cuda"]) == 0
    assert "copy's bandwidth" in capsys.readouterr().out
