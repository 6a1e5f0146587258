"""The command line: a table of commands, their arguments, and errors in one line.

A command is a function from its arguments to an exit status. It imports what it needs itself, so
that `fp4lab --help` starts at once; a new command is a function and a line in `COMMANDS`.

Exit statuses: 0 done, 2 the input or a file is at fault, 3 training met a NaN or an infinity, 4 the
run was stopped and can go on. What the user can cause is one line on standard error; any other
exception is a bug and shows its traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from fp4lab import __version__
from fp4lab.errors import InputError, NonFiniteError, unknown

OK, BAD_INPUT, NON_FINITE, STOPPED, INTERRUPTED = 0, 2, 3, 4, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--version"]:
        print(f"fp4lab {__version__}")
        return OK
    if not words or words[0] in {"-h", "--help"}:
        print(_usage())
        return OK if words else BAD_INPUT
    try:
        if words[0] not in COMMANDS:
            raise unknown("command", words[0], COMMANDS)
        return COMMANDS[words[0]][0](words[1:])
    except (InputError, NonFiniteError, OSError) as error:
        print(f"fp4lab: {_describe(error)}", file=sys.stderr)
        return NON_FINITE if isinstance(error, NonFiniteError) else BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED


def parse(
    command: str, fields: dict[str, tuple[Any, Any, str]], arguments: list[str], *, about: str
) -> Any:
    """The arguments of a command as an object, by tyro; `--help` prints and exits.

    `fields` gives for each argument its type, its default (`dataclasses.MISSING` if it must be
    given) and its help. Raises InputError with tyro's message in one line for arguments that do not
    fit.
    """
    import tyro

    entries = [
        (
            name,
            Annotated[kind, tyro.conf.arg(help=text)] if text else kind,
            dataclasses.field(default=default),
        )
        for name, (kind, default, text) in fields.items()
    ]
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(
                dataclasses.make_dataclass("Arguments", entries),
                args=arguments,
                prog=f"fp4lab {command}",
                description=about,
            )
    except SystemExit as stop:
        if stop.code in {0, None}:
            raise
        raise InputError(_one_line(errors.getvalue(), command)) from None


def train(arguments: list[str]) -> int:
    """Train a language model, or go on with the run in its folder."""
    from tyro.conf import arg

    from fp4lab.train import RunConfig, progress, toml
    from fp4lab.train import train as run
    from fp4lab.train.run import default_folder

    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--config", type=Path, nargs="?")
    file = first.parse_known_args(arguments)[0].config
    base = RunConfig() if file is None else toml.load(file, RunConfig)
    given = parse(
        "train",
        {
            "config": (Path | None, None, "TOML file with the config that the options change."),
            "out": (Path | None, None, "The run's folder; by default one in runs/, by config."),
            # Without a name, the options of the config stand beside the two above.
            "run": (Annotated[RunConfig, arg(name="")], base, ""),
        },
        arguments,
        about="Train a language model under a precision recipe. If the run's folder holds the "
        "same run, it goes on from its newest checkpoint. torchrun -m fp4lab train ... uses "
        "several processes.",
    )
    config = given.run
    folder = given.out or default_folder(config)
    is_first = os.environ.get("RANK", "0") == "0"
    show = progress(config.steps) if is_first else contextlib.nullcontext()
    with show as on_event:
        result = run(config, folder=folder, on_event=on_event)
    if not result.finished:
        return STOPPED
    if is_first:
        loss = "" if result.val_loss is None else f", held-out loss {result.val_loss:.4f} nats"
        bits = "" if result.bits_per_byte is None else f", {result.bits_per_byte:.4f} bits/byte"
        print(f"{folder}: {result.steps} steps{loss}{bits}")
    return OK


def evaluate(arguments: list[str]) -> int:
    """Report the held-out loss of a checkpoint."""
    from typing import Literal

    from tyro.conf import Positional

    from fp4lab.train import evaluate as run

    given = parse(
        "eval",
        {
            "checkpoint": (
                Positional[Path],
                dataclasses.MISSING,
                "A checkpoint's folder, or a run's folder for its newest checkpoint.",
            ),
            "device": (Literal["auto", "cpu", "cuda"], "auto", "Where to evaluate."),
        },
        arguments,
        about="Report the loss on the held-out text, with the run's own config and recipe.",
    )
    found = run(given.checkpoint, device=given.device)
    bits = "" if found.bits_per_byte is None else f", {found.bits_per_byte:.4f} bits/byte"
    print(f"{found.checkpoint}: held-out loss {found.loss:.4f} nats{bits}")
    return OK


def compare(arguments: list[str]) -> int:
    """Compare recipes on one model."""
    from fp4lab.studies import command

    about = command.COMPARE_ABOUT
    return command.compare(parse("compare", command.COMPARE, arguments, about=about))


def report(arguments: list[str]) -> int:
    """Draw a comparison's report again."""
    from fp4lab.studies import command

    about = command.REPORT_ABOUT
    return command.redraw(parse("report", command.REPORT, arguments, about=about))


#: Name, function and one line of help of every command, in the order of the help.
COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "compare": (compare, "train one model under several recipes and report the gaps"),
    "train": (train, "train a language model under a precision recipe"),
    "eval": (evaluate, "the held-out loss of a checkpoint"),
    "report": (report, "draw the report of a comparison again"),
}


def _usage() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return (
        "usage: fp4lab COMMAND [options]\n\n"
        "Training in 4- and 8-bit floating point, emulated bit for bit on any machine.\n\n"
        f"{commands}\n\n"
        "fp4lab COMMAND --help lists the options of a command."
    )


def _describe(error: Exception) -> str:
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return str(error)
    text = f"{error.filename}: {error.strerror}"
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        text += "; what was saved before is intact: free some space and give the command again"
    return text


def _one_line(box: str, command: str) -> str:
    """What tyro says in a box of many lines: the message, and the nearest option if it knows one.

    >>> _one_line("╭─ Error ─╮\\n│ Unknown: -x │\\n│ ─── │\\n│ For help │\\n╰──╯", "train")
    'Unknown: -x; see fp4lab train --help'
    """
    parts: list[list[str]] = [[]]
    for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines():
        text = line.strip("│ ")
        if text and set(text) <= {"─", "-"}:
            parts.append([])
        elif text and not text.startswith(("╭", "╰")):
            parts[-1].append(text)
    if "╭" not in box:
        # Without UTF-8 the title is not in the frame but above the first rule.
        parts = parts[1:] or parts
    message = re.sub(r"^Error parsing (?!-)[^:]*: ", "", " ".join(parts[0]).rstrip("."))
    near = parts[1] if len(parts) > 1 else []
    if near and near[0].startswith("Perhaps you meant") and len(near) > 1:
        return f"{message}; did you mean {near[1].split(' ')[0]}?"
    return f"{message}; see fp4lab {command} --help"
