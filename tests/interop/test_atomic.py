"""Whatever ends a write, what was there before stays, and nothing else is left."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import fp4lab
from fp4lab import InputError, formats, interop
from fp4lab.interop import atomic, sink
from fp4lab.interop.layouts import LayoutName
from tests.interop.models import contents, folder, state

EACH: list[LayoutName] = ["compressed-tensors", "modelopt", "gguf", "fp4lab"]


def out_of(path: Path, layout: str) -> Path:
    return path / ("out.gguf" if layout == "gguf" else "out")


def quantize(source: Path, out: Path, layout: LayoutName, *, overwrite: bool = False) -> None:
    interop.quantize(source, out, format=formats.NVFP4, layout=layout, overwrite=overwrite)


@pytest.mark.parametrize("layout", EACH)
def test_nothing_is_replaced_without_being_asked(tmp_path: Path, layout: LayoutName) -> None:
    source, out = folder(tmp_path / "in"), out_of(tmp_path, layout)
    quantize(source, out, layout)
    before = contents(out)
    with pytest.raises(InputError, match="is there already; add"):
        quantize(source, out, layout)
    assert contents(out) == before
    fmt = formats.NVFP4_MODELOPT
    interop.quantize(source, out, format=fmt, layout=layout, overwrite=True)
    assert contents(out) != before
    assert {path.name for path in tmp_path.iterdir()} == {"in", out.name}


def test_a_folder_that_was_not_written_here_is_never_deleted(tmp_path: Path) -> None:
    source, mine = folder(tmp_path / "in"), folder(tmp_path / "mine")
    for target in (mine, tmp_path):
        before = contents(mine)
        with pytest.raises(InputError, match=r"fp4lab did not write there|lie in each other"):
            quantize(source, target, "modelopt", overwrite=True)
        assert contents(mine) == before


def test_targets_that_make_no_sense(tmp_path: Path) -> None:
    source = folder(tmp_path / "in")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link.gguf").symlink_to(tmp_path / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for out, layout, message in (
        ("file", "modelopt", "is there and no folder"),
        ("link.gguf", "gguf", "is a symbolic link"),
        ("dangling", "modelopt", "is a symbolic link"),
        ("in", "modelopt", "is there already"),
        ("in/out", "modelopt", "lie in each other"),
        ("out", "gguf", "give a name that ends in .gguf"),
        ("out.safetensors", "modelopt", "is a folder of weights and config.json"),
        ("out.gguf", "fp4lab", "is a folder of weights and config.json"),
        ("file/out", "modelopt", "file' is no folder"),
        ("in/..", "modelopt", "has no name of its own"),
        ("out.GGUF", "modelopt", "is a folder of weights and config.json"),
        ("out.SafeTensors", "modelopt", "is a folder of weights and config.json"),
    ):
        with pytest.raises(InputError, match=message):
            quantize(source, tmp_path / out, layout, overwrite=out != "in")  # type: ignore[arg-type]
    assert (tmp_path / "file").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"in", "file", "link.gguf", "dangling"}


@pytest.mark.parametrize("layout", EACH)
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, layout: LayoutName, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = folder(tmp_path / "in"), out_of(tmp_path, layout)
    quantize(source, out, layout)
    before = contents(tmp_path)
    written = 0
    real = sink.Sink._pwrite

    def full(self: sink.Sink, data: bytes, offset: int) -> None:
        nonlocal written
        written += len(data)
        if written > 20_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, data, offset)

    monkeypatch.setattr(sink.Sink, "_pwrite", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        quantize(source, out, layout, overwrite=True)
    assert raised.value.filename == str(out)
    assert contents(tmp_path) == before


def test_a_limit_of_the_file_system_is_told_in_one_line(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the kernel refuse the bytes beyond it."""
    source, out = folder(tmp_path / "in"), tmp_path / "out"
    words = ["quantize", str(source), str(out), "--format", "nvfp4", "--layout", "modelopt"]
    done = subprocess.run(
        [sys.executable, "-m", "fp4lab", *words],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert done.returncode == 2
    assert done.stderr == f"fp4lab: {out}: File too large\n"
    assert {path.name for path in tmp_path.iterdir()} == {"in"}


@contextmanager
def started(tmp_path: Path, out: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that writes a file and sleeps after half of it."""
    program = f"""
import signal, sys, time
# ignored where the tests themselves run in the background of a shell
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from fp4lab import cli
from fp4lab.interop import sink
real, count = sink.Sink._pwrite, 0
def slow(self, data, offset):
    global count
    count += 1
    real(self, data, offset)
    if count == 6:
        print("half", flush=True)
        time.sleep(60)
sink.Sink._pwrite = slow
sys.exit(cli.main(["quantize", {str(tmp_path / "in")!r}, {str(out)!r}, "--format", "nvfp4",
                   "--layout", "modelopt", "--overwrite"]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "half\n"
            yield process
        finally:
            process.kill()


def test_an_interrupt_says_130_and_leaves_nothing(tmp_path: Path) -> None:
    source, out = folder(tmp_path / "in"), tmp_path / "out"
    quantize(source, out, "modelopt")
    before = contents(tmp_path)
    with started(tmp_path, out) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=50)
    assert process.returncode == 130
    assert err == f"fp4lab: interrupted; {out} is as it was\n"
    assert contents(tmp_path) == before


def test_what_a_killed_process_leaves_is_cleaned_by_the_next(tmp_path: Path) -> None:
    source, out = folder(tmp_path / "in"), tmp_path / "out"
    quantize(source, out, "modelopt")
    before = contents(out)
    with (
        started(tmp_path, out) as process,
        pytest.raises(InputError, match="is being written by another process; wait for its end"),
    ):
        quantize(source, out, "modelopt", overwrite=True)
    assert process.returncode == -signal.SIGKILL
    assert contents(out) == before
    left = {path.name for path in tmp_path.iterdir()} - {"in", "out"}
    assert left == {f".out.{process.pid}.tmp"}
    quantize(source, out, "modelopt", overwrite=True)
    assert contents(out) == before
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}


def test_a_folder_that_was_set_aside_in_the_last_instant_comes_back(tmp_path: Path) -> None:
    source, out = folder(tmp_path / "in"), tmp_path / "out"
    quantize(source, out, "modelopt")
    before = contents(out)
    out.rename(tmp_path / ".out.123.old")
    with (
        pytest.raises(RuntimeError, match="late"),
        atomic.replacing(out, folder=True, overwrite=True, foreign=lambda path: ""),
    ):
        raise RuntimeError("late")
    assert contents(out) == before
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, os.strerror(errno.EIO)), KeyboardInterrupt(), SystemExit(143)]
)
def test_a_new_folder_that_cannot_be_put_in_place_leaves_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    source, out = folder(tmp_path / "in"), tmp_path / "out"
    quantize(source, out, "modelopt")
    before = contents(tmp_path)
    real = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp":
            raise error
        return real(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(type(error)):
        quantize(source, out, "modelopt", overwrite=True)
    assert contents(tmp_path) == before


def test_a_source_that_fails_half_way_leaves_what_was_there(tmp_path: Path) -> None:
    tensors = state()
    tensors["model.layers.0.self_attn.o_proj.weight"][5, 7] = float("nan")
    source, out = folder(tmp_path / "in", tensors), tmp_path / "out"
    good = folder(tmp_path / "good")
    quantize(good, out, "fp4lab")
    before = contents(tmp_path)
    with pytest.raises(InputError, match="holds NaN"):
        quantize(source, out, "fp4lab", overwrite=True)
    assert contents(tmp_path) == before


def test_a_file_in_a_new_folder_of_folders(tmp_path: Path) -> None:
    save_file({"a.weight": torch.ones(16, 64)}, tmp_path / "in.safetensors")
    quantize(tmp_path / "in.safetensors", tmp_path / "x" / "y" / "out.gguf", "gguf")
    assert interop.layout_of(tmp_path / "x" / "y" / "out.gguf") == "gguf"


def test_what_comes_to_be_in_the_meantime_is_not_replaced(tmp_path: Path) -> None:
    source = folder(tmp_path / "in")
    for layout, name in (("modelopt", "late"), ("gguf", "late.gguf")):
        out = tmp_path / name

        def another(nbytes: int, tensor: str = "", /, out: Path = out) -> None:
            if out.suffix:
                out.write_text("mine")
            else:
                out.mkdir(exist_ok=True)
                (out / "precious").write_text("mine")

        with pytest.raises(InputError, match="is there already; add"):
            interop.quantize(
                source,
                out,
                format=formats.NVFP4,
                layout=layout,  # type: ignore[arg-type]
                on_tensor=another,
            )
        assert set(contents(out).values()) == {b"mine"}
    assert {path.name for path in tmp_path.iterdir()} == {"in", "late", "late.gguf"}


def test_what_was_set_aside_is_not_replaced_without_being_asked(tmp_path: Path) -> None:
    source, out = folder(tmp_path / "in"), tmp_path / "out"
    quantize(source, out, "modelopt")
    before = contents(out)
    out.rename(tmp_path / ".out.99.old")
    with pytest.raises(InputError, match="is there already; add"):
        quantize(source, out, "modelopt")
    assert contents(out) == before
    (out / "NOTE").write_text("mine")
    out.rename(tmp_path / ".out.99.old")
    with pytest.raises(InputError, match="holds 'NOTE', which fp4lab did not write there"):
        quantize(source, out, "modelopt", overwrite=True)
    assert (out / "NOTE").read_text() == "mine"


@pytest.mark.parametrize("layout", ["compressed-tensors", "modelopt", "fp4lab"])
def test_a_folder_that_holds_more_than_was_written_is_not_deleted(
    tmp_path: Path, layout: LayoutName
) -> None:
    source, out = folder(tmp_path / "in"), tmp_path / "out"
    quantize(source, out, layout)
    quantize(source, out, layout, overwrite=True)
    assert (out / "1_Pooling" / "config.json").read_text() == "{}"
    for mine in (out / "eval_results.txt", out / ".notes", out / "1_Pooling" / "x", out / "runs"):
        mine.mkdir() if mine.name == "runs" else mine.write_text("mine")
        name = str(mine.relative_to(out))
        with pytest.raises(InputError, match=f"holds '{name}', which fp4lab did not write there"):
            quantize(source, out, layout, overwrite=True)
        assert mine.exists()
        atomic.remove(mine) if mine.is_file() else mine.rmdir()
    quantize(source, out, layout, overwrite=True)


def test_a_folder_with_weights_that_were_saved_there_is_not_deleted(tmp_path: Path) -> None:
    source, out = folder(tmp_path / "in"), tmp_path / "out"
    out.mkdir()
    fp4lab.save({"a": torch.ones(2)}, out / "model.safetensors")
    (out / "optimizer.pt").write_bytes(b"mine")
    before = contents(out)
    with pytest.raises(InputError, match="which fp4lab did not write there"):
        quantize(source, out, "modelopt", overwrite=True)
    assert contents(out) == before


@pytest.mark.parametrize("layout", EACH)
def test_modes_are_the_usual_ones_or_those_of_what_is_replaced(
    tmp_path: Path, layout: LayoutName
) -> None:
    source, out = folder(tmp_path / "in"), out_of(tmp_path, layout)
    before = os.umask(0o027)
    try:
        quantize(source, out, layout)
        files = [path for path in (out, *out.rglob("*")) if path.is_file()]
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o640}
        mode = 0o775 if out.is_dir() else 0o664
        assert stat.S_IMODE(out.stat().st_mode) == (0o750 if out.is_dir() else 0o640)
        out.chmod(mode)
        quantize(source, out, layout, overwrite=True)
        assert stat.S_IMODE(out.stat().st_mode) == mode
    finally:
        os.umask(before)


def test_a_pipe_is_never_opened(tmp_path: Path) -> None:
    """Each of these would wait for a writer that never comes."""
    source, out = folder(tmp_path / "in"), tmp_path / "out"
    for name in (".out.1.tmp", ".out.1.old"):
        os.mkfifo(tmp_path / name)
    quantize(source, out, "modelopt")
    assert {p.name for p in tmp_path.iterdir()} == {"in", "out", ".out.1.tmp", ".out.1.old"}
    os.mkfifo(tmp_path / f".out.{os.getpid()}.tmp")
    with pytest.raises(FileExistsError) as raised:
        quantize(source, out, "modelopt", overwrite=True)
    assert raised.value.filename == str(out)
    assert (tmp_path / f".out.{os.getpid()}.tmp").is_fifo()
    (tmp_path / "piped").mkdir()
    os.mkfifo(tmp_path / "piped" / "model.safetensors")
    with pytest.raises(InputError, match=r"holds 'model.safetensors', which fp4lab did not write"):
        quantize(source, tmp_path / "piped", "modelopt", overwrite=True)


def test_a_name_that_leaves_no_room_for_more(tmp_path: Path) -> None:
    source, out = folder(tmp_path / "in"), tmp_path / ("o" * 250)
    quantize(source, out, "modelopt")
    quantize(source, out, "modelopt", overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"in", out.name}
    with pytest.raises(OSError, match="File name too long") as raised:
        quantize(source, tmp_path / ("o" * 256), "modelopt")
    assert raised.value.filename == str(tmp_path / ("o" * 256))


def test_a_folder_that_is_read_only_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere, so the kernel's answer is given here."""
    source = folder(tmp_path / "in")
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(InputError, match=f"out' cannot be made, for '{tmp_path}' is read-only"):
        quantize(source, tmp_path / "out", "modelopt")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_process_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    source, out = folder(tmp_path / "in"), tmp_path / "out"
    quantize(source, out, "modelopt")
    before = contents(tmp_path)
    with started(tmp_path, out) as process:
        process.send_signal(number)
        _, err = process.communicate(timeout=50)
    assert process.returncode == 128 + number
    assert err == f"fp4lab: ended by {number.name}; {out} is as it was\n"
    assert contents(tmp_path) == before
