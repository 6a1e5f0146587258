"""`fp4lab quantize` and `fp4lab inspect` from their options to their output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fp4lab import cli, interop
from fp4lab.interop import command
from tests.interop.models import LINEAR, contents, folder


def test_quantize_prints_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = folder(tmp_path / "in"), tmp_path / "out"
    words = ["quantize", str(source), str(out), "--format", "nvfp4"]
    words += ["--layout", "compressed-tensors", "--keep", "*.down_proj", "--keep", "*.o_proj"]
    assert cli.main([*words, "--json", str(tmp_path / "done.json")]) == 0
    printed, err = capsys.readouterr()
    assert err == ""
    done = json.loads((tmp_path / "done.json").read_text())
    lines = printed.splitlines()
    assert lines[0] == f"quantized 5 of 12 tensors into {out}"
    before, after = done["nbytes_before"], done["nbytes_after"]
    assert (
        lines[1]
        == f"size: {before / 1e6:.2f} MB before, {after / 1e6:.2f} MB after ({before / after:.2f}x)"
    )
    assert f"SQNR of what was quantized: {done['sqnr_db']:.2f} dB; lowest:" in lines
    assert "  keep='*.down_proj': model.layers.0.mlp.down_proj.weight" in lines
    assert "  head: lm_head.weight" in lines
    assert "tensor scales shared in 2 groups, such as:" in lines
    assert [row["name"] for row in done["rows"]] == list(interop.read(source))
    # what is done already is refused, in one line
    assert cli.main(words) == 2
    out_, err = capsys.readouterr()
    assert (out_, err.count("\n")) == ("", 1)
    assert err.startswith(f"fp4lab: out={str(out)!r} is there already; add --overwrite")
    assert cli.main([*words, "--overwrite", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == done


def test_inspect_prints_the_table_worst_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder(tmp_path / "in")
    words = ["inspect", str(source), "--format", "nvfp4", "--format", "mxfp4"]
    assert cli.main([*words, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert cli.main(["inspect", str(source), "--format", "nvfp4, mxfp4", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    values = [row["errors"]["nvfp4"]["sqnr_db"] for row in found["rows"]]
    assert values == sorted(values)
    assert cli.main([*words, "--json", str(tmp_path / "x" / "found.json")]) == 0
    printed = capsys.readouterr().out
    assert json.loads((tmp_path / "x" / "found.json").read_text()) == found
    for row in found["rows"]:
        line = next(line for line in printed.splitlines() if f" {row['name']} " in line)
        assert f"{row['errors']['nvfp4']['sqnr_db']:.2f} dB" in line
        assert f"{row['amax']:.4g}" in line
    positions = [printed.index(f" {row['name']} ") for row in found["rows"]]
    assert positions == sorted(positions)


def test_inspect_says_what_a_quantized_file_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = folder(tmp_path / "in"), tmp_path / "out"
    words = ["quantize", str(source), str(out), "--format", "nvfp4", "--layout", "modelopt"]
    assert cli.main(words) == 0
    capsys.readouterr()
    assert cli.main(["inspect", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "layout modelopt: 7 nvfp4_modelopt (tensor scale: decode)" in printed
    for name, shape in LINEAR.items():
        line = next(line for line in printed.splitlines() if f" {name} " in line)
        assert f"{shape[0]}x{shape[1]}" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inspect", ""], "path='' is empty"),
        (["quantize", "in", "", "--format", "nvfp4", "--layout", "modelopt"], "out='' is empty"),
        (["inspect", "none"], "path='none' is neither a file nor a folder"),
        (["inspect", "in"], "is not quantized; add a format, such as --format nvfp4"),
        (["inspect", "in", "--format", "nvpf4"], "did you mean 'nvfp4'?"),
        (["inspect", "in", "--format", "nvfp4", "--sort", "x"], "see fp4lab inspect --help"),
        (["inspect"], "see fp4lab inspect --help"),
        (["quantize", "in", "out", "--format", "nvfp4"], "see fp4lab quantize --help"),
        (
            ["quantize", "in", "out", "--format", "nvfp4", "--layout", "awq"],
            "see fp4lab quantize --help",
        ),
        (
            ["quantize", "in", "out", "--format", "fp8_tensor_e4m3", "--layout", "modelopt"],
            "has no place in modelopt",
        ),
        (["quantize", "none", "out", "--format", "nvfp4", "--layout", "gguf"], "source='none'"),
        (
            ["quantize", "in", "out", "--format", "nvfp4", "--layout", "modelopt", "--keep", "x"],
            "keep='x' matches no tensor",
        ),
        (
            ["quantize", "in", "out", "--format", "nvfp4", "--layout", "modelopt", "--keep", "a|"],
            "has an empty part",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    folder(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fp4lab: ")
    assert err.count("\n") == 1
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_an_interrupt_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    folder(tmp_path / "in")
    monkeypatch.setattr(command.quantizing, "quantize", interrupted)
    words = ["quantize", str(tmp_path / "in"), "out", "--format", "nvfp4", "--layout", "modelopt"]
    assert cli.main(words) == 130
    assert capsys.readouterr().err == "fp4lab: interrupted; out is as it was\n"


def test_names_with_markup_are_shown_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"[red]a[/red].weight": torch.randn(16, 64)}, tmp_path / "in.safetensors")
    assert cli.main(["inspect", str(tmp_path / "in.safetensors"), "--format", "nvfp4"]) == 0
    assert "[red]a[/red].weight" in capsys.readouterr().out


@pytest.mark.parametrize("command_words", [["inspect"], ["quantize"]])
def test_figures_never_take_the_place_of_something_else(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command_words: list[str],
) -> None:
    folder(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("mine")
    Path("mine.json").write_text('{"mine": 1}')
    Path("link.json").symlink_to("mine.json")
    before = contents(tmp_path)
    quantizes = command_words == ["quantize"]
    words = [*command_words, "in", *(["out", "--layout", "modelopt"] if quantizes else [])]
    words += ["--format", "nvfp4", "--json"]
    cases = [
        ("in/model.safetensors", "holds no figures of this command"),
        ("in/config.json", "holds no figures of this command"),
        ("mine.txt", "holds no figures of this command"),
        ("mine.json", "holds no figures of this command"),
        ("link.json", "is a symbolic link"),
        ("in", "is there and no file"),
        ("/dev/full", "is there and no file"),
        ("mine.txt/x", "is no folder"),
        ("", "is empty"),
        *([("out", "lies in the output"), ("out/x/y.json", "lies in the output")] * quantizes),
    ]
    for path, message in cases:
        assert cli.main([*words, path]) == 2, path
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith(f"fp4lab: --json={path!r} ")
        assert message in err
        assert contents(tmp_path) == before
    Path("empty").touch()
    for path in ("new/figures", "new/figures", "empty"):
        assert cli.main([*words, path]) == 0
        assert "rows" in json.loads(Path(path).read_text())
        words += ["--overwrite"] if quantizes and "--overwrite" not in words else []
        words = [word for word in words if word != "--json"] + ["--json"]


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf"])
def test_figures_never_take_the_place_of_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    source, out = tmp_path / "in.safetensors", tmp_path / f"out{suffix}"
    save_file({"a.weight": torch.randn(16, 64)}, source)
    before = contents(tmp_path)
    layout = "gguf" if suffix == ".gguf" else "fp4lab"
    words = ["quantize", str(source), str(out), "--format", "nvfp4", "--layout", layout, "--json"]
    for path in (source, out):
        assert cli.main([*words, str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert cli.main(["inspect", str(source), "--format", "nvfp4", "--json", str(source)]) == 2
    assert contents(tmp_path) == before
