from __future__ import annotations

import doctest
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fp4lab import __version__, cli
from fp4lab.errors import NonFiniteError
from fp4lab.recipes import get

FILLS_NO_BLOCK = ("train", "--batch-size", "1", "--data.sequence-length", "30")


def test_docstring_example() -> None:
    assert doctest.testmod(cli).failed == 0


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, (_, about) in cli.COMMANDS.items():
        assert f"  {name}" in text
        assert about in text
    for status, about in cli.STATUSES.items():
        assert f"  {status} " in text
        assert about in text
    assert cli.main([]) == 2
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.endswith(f"fp4lab {__version__}\n")


def test_the_start_is_light() -> None:
    code = (
        "import sys, fp4lab.cli; "
        "status = fp4lab.cli.main(['--help']) or fp4lab.cli.main(['--version']); "
        "sys.exit(bool(status or {'torch', 'tyro', 'rich', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_interrupt_while_libraries_are_imported_has_no_traceback(tmp_path: Path) -> None:
    """Ctrl-C in the second before a command begins."""
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt")
    path = os.pathsep.join([str(tmp_path), str(Path(cli.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-m", "fp4lab", "train", "--steps", "3"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "command='trian' is not known; did you mean 'train'?"),
        (["train", "--steps", "0"], "steps=0 is below 1; give 1 or more"),
        (["train", "--threads", "100000"], "threads=100000 is above the "),
        (["train", "--steps", "x"], "Error parsing --steps: invalid literal for int()"),
        (["train", "--stesp", "3"], "Unrecognized options: --stesp, 3; did you mean --steps?"),
        (["train", "--optim.schedule", "cos"], "invalid choice 'cos' for argument"),
        (["train", "--config", "absent.toml"], "config=absent.toml does not exist"),
        (["train", "--config"], "Missing value for argument '--config'"),
        (["train", "--model.preset", "gpt-tny"], "preset='gpt-tny' is not known"),
        (["train", "--recipe", "absent.toml"], ": --recipe='absent.toml' of a recipe does not "),
        (["train", "--recipe", "nvpf4"], ": --recipe='nvpf4' is not known; did you mean 'nvfp4'?"),
        (["train", "--data.source", "/absent"], ": --data.source='/absent' is no folder or file"),
        (["train", "--data", "/absent"], ": --data='/absent' is no folder or file"),
        (["compare", "--data=/absent"], ": --data='/absent' is no folder or file"),
        (["compare", "--recipes", "bf16, nvpf4"], ": --recipes='nvpf4' is not known; did you"),
        (
            ["train", "--data.eval-windows", "99999"],
            ": --data.eval-windows=99999 is more than the ",
        ),
        (["train", "--learning-rate", "-1e-3"], ": --learning-rate=-0.001 is not a positive"),
        # of two options with this value the one that is meant, and none where it is a file's
        (["train", "--microbatches", "0", "--steps", "0"], ": --steps=0 is below 1"),
        (["train", "--config", "zero.toml", "--seed", "0"], ": steps=0 is below 1"),
        (
            [*FILLS_NO_BLOCK, "--recipe", "nvfp4"],
            "recipe 'nvfp4' cannot train this model: layer ",
        ),
        (
            [*FILLS_NO_BLOCK, "--recipe", "late.toml", "--steps", "3"],
            "recipe 'bf16' cannot train this model: layer ",
        ),
        (["train", "--data.source", " "], "--data.source=' ' names nothing; give 'stdlib' or"),
        (["compare", "--data", ""], ": --data='' names nothing; give 'stdlib' or"),
        (["eval"], "Missing from fp4lab eval"),
        (["eval", "/absent"], "checkpoint=/absent does not exist"),
    ],
)
def test_a_user_error_is_one_line_and_status_2(
    arguments: list[str],
    message: str,
    refused: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if "late.toml" in arguments:
        late = get("bf16").switch(get("nvfp4"), at=2)
        Path("late.toml").write_text(late.to_toml())
    if "zero.toml" in arguments:
        Path("zero.toml").write_text("steps = 0\n")
    assert message in refused(*arguments)
    assert {path.name for path in tmp_path.iterdir()} <= {"late.toml", "zero.toml"}


def test_the_one_line_does_not_depend_on_the_terminal() -> None:
    """Narrow, and without the characters that a box is drawn with."""
    done = subprocess.run(
        [sys.executable, "-m", "fp4lab", "train", "--stesp", "3"],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "40"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    message = "fp4lab: Unrecognized options: --stesp, 3; did you mean --steps?"
    assert done.stderr == f"{message}\n"


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (NonFiniteError("step 3: layer 'x'"), 3, "fp4lab: step 3: layer 'x'\n"),
        (OSError(errno.EACCES, "Permission denied", "/a"), 2, "fp4lab: /a: Permission denied\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/a"),
            2,
            "fp4lab: /a: No space left on device; what was saved before is intact: "
            "free some space and give the command again\n",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            2,
            "fp4lab: No space left on device; what was saved before is intact: "
            "free some space and give the command again\n",
        ),
        (OSError("odd"), 2, "fp4lab: odd\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_other_endings(
    error: BaseException,
    status: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(arguments: list[str]) -> int:
        raise error

    monkeypatch.setitem(cli.COMMANDS, "train", (fail, ""))
    assert cli.main(["train"]) == status
    assert capsys.readouterr().err == text


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: list[str]) -> int:
        raise KeyError("bug")

    monkeypatch.setitem(cli.COMMANDS, "train", (fail, ""))
    with pytest.raises(KeyError, match="bug"):
        cli.main(["train"])


@pytest.mark.parametrize("columns", ["1", "5"])
def test_help_on_a_terminal_that_is_too_narrow(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """rich would go on wrapping it for ever."""
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit):
        cli.main(["compare", "--help"])
    assert "--recipes" in capsys.readouterr().out


def test_help_of_a_command_names_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "--help"])
    assert stop.value.code in {0, None}
    text = capsys.readouterr().out
    for option in ("--out", "--config", "--recipe", "--steps", "--optim.learning-rate"):
        assert option in text
    assert "(default: None)" not in " ".join(text.split())
    assert "(default: 2050)" in " ".join(text.split())
    assert "torchrun --nproc-per-node N -m fp4lab train --microbatches N" in " ".join(text.split())
