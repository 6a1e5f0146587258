"""The command line: a table of commands, their arguments, and errors in one line.

A command's options and what it does stand in the `command.py` of its room, which is imported when
the command is given, so that `fp4lab --help` starts at once; a new command is a function here and a
line in `COMMANDS`.

The exit statuses are listed by `fp4lab --help` (`STATUSES`). What the user can cause is one line on
standard error; any other exception is a bug and shows its traceback, with Python's own status 1.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

from fp4lab import __version__
from fp4lab.errors import InputError, NonFiniteError, describe, unknown
from fp4lab.streams import forgiving

STATUSES = {
    0: "done",
    1: "nothing could be compared, as the baseline or all others failed",
    2: "the input or a file is at fault; for doctor: something is broken",
    3: "training met a NaN or an infinity",
    4: "the run was stopped, and the same command goes on; torchrun itself says 1",
    5: "compared, but without the runs that failed",
    130: "interrupted",
}
NARROWEST = 20
OK, BAD_INPUT, NON_FINITE, INTERRUPTED = 0, 2, 3, 130
#: what the arguments below the command line are called where an option has another name
ARGUMENTS = {
    "data": ("source",),
    "model": ("preset",),
    "recipe": ("path",),
    "recipes": ("recipe", "path"),
}
#: what messages give as a cure, and the option that it is
CURES = {"overwrite": "overwrite", "layout": "layout", "formats": "format", "keep": "keep"}
Arguments = TypeVar("Arguments")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status.

    A reader of the output that has seen enough is no error, and lost messages end nothing.
    """
    out, err = forgiving(sys.stdout, BrokenPipeError), forgiving(sys.stderr, OSError)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            return _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            # Only for `--help`, which leaves by SystemExit: what else is printed has been flushed.
            with contextlib.suppress(OSError):
                out.flush()


def _run(words: list[str]) -> int:
    # On a terminal narrower than its indentation, the text of a help never ends.
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)
    if words[:1] == ["--version"]:
        print(f"fp4lab {__version__}")
        return OK
    if not words or words[0] in {"-h", "--help"}:
        print(_usage())
        return OK if words else BAD_INPUT
    try:
        if words[0] not in COMMANDS:
            raise unknown("command", words[0], COMMANDS)
        status = COMMANDS[words[0]][0](words[1:])
        sys.stdout.flush()
        return status
    except (InputError, NonFiniteError, OSError) as error:
        print(f"fp4lab: {_cured(_as_typed(describe(error), words[1:]))}", file=sys.stderr)
        return NON_FINITE if isinstance(error, NonFiniteError) else BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED


def parse(
    command: str, kind: type[Arguments], words: list[str], *, default: Arguments | None = None
) -> Arguments:
    """The arguments of a command, by tyro; `--help` prints and exits.

    `kind` is a dataclass: its docstring is the help of the command, those of its fields the help of
    the options. Raises InputError with tyro's message in one line for words that do not fit.
    """
    import tyro

    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            parsed = tyro.cli(kind, args=words, prog=f"fp4lab {command}", default=default)
    except SystemExit as stop:
        if stop.code in {0, None}:
            raise
        raise InputError(_one_line(errors.getvalue(), command)) from None
    assert isinstance(parsed, kind)
    return parsed


def compare(words: list[str]) -> int:
    """Compare recipes on one model."""
    from fp4lab.studies import command
    from fp4lab.train.command import with_project

    words = with_project(words)
    return command.compare(parse("compare", command.CompareArguments, words))


def train(words: list[str]) -> int:
    """Train a language model, or go on with the run in its folder."""
    from fp4lab.train import command

    words = command.with_project(words)
    default = command.TrainArguments.before(words)
    return command.train(parse("train", command.TrainArguments, words, default=default))


def evaluate(words: list[str]) -> int:
    """Report the loss of a checkpoint on held-out or other text."""
    from fp4lab.train import command

    return command.evaluate(parse("eval", command.EvalArguments, words))


def generate(words: list[str]) -> int:
    """Continue a text with a trained model."""
    from fp4lab.train import command

    return command.generate(parse("generate", command.GenerateArguments, words))


def data(words: list[str]) -> int:
    """Prepare text for training."""
    if not words or words[0] in {"-h", "--help"}:
        print("usage: fp4lab data prepare SOURCE --out SHARDS; see fp4lab data prepare --help")
        return OK if words else BAD_INPUT
    if words[0] != "prepare":
        raise unknown("data command", words[0], ["prepare"])
    from fp4lab.data import command

    return command.prepare(parse("data prepare", command.PrepareArguments, words[1:]))


def quantize(words: list[str]) -> int:
    """Quantize a model's weights into the layout of a tool."""
    from fp4lab.interop import command

    return command.quantize(parse("quantize", command.QuantizeArguments, words))


def inspect(words: list[str]) -> int:
    """Show what formats do to the tensors of a file."""
    from fp4lab.interop import command

    return command.inspect(parse("inspect", command.InspectArguments, words))


def report(words: list[str]) -> int:
    """Draw a comparison's report again."""
    from fp4lab.studies import command

    return command.redraw(parse("report", command.ReportArguments, words))


def diff(words: list[str]) -> int:
    """Print what differs between two runs."""
    from fp4lab.report import command

    return command.diff(parse("diff", command.DiffArguments, words))


def bench(words: list[str]) -> int:
    """Measure the speed of the operators."""
    from fp4lab.bench import command

    return command.bench(parse("bench", command.BenchArguments, words))


def doctor(words: list[str]) -> int:
    """Show what fp4lab finds on this machine, and whether it works."""
    from fp4lab.doctor import command

    return command.doctor(parse("doctor", command.DoctorArguments, words))


#: Name, function and one line of help of every command, in the order of the help.
COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "compare": (compare, "train one model under several recipes and report the gaps"),
    "train": (train, "train a language model under a precision recipe"),
    "eval": (evaluate, "the loss of a checkpoint on held-out or other text"),
    "generate": (generate, "continue a text with a trained language model"),
    "data": (data, "prepare text of any size for training: fp4lab data prepare"),
    "inspect": (inspect, "what formats do to each tensor of a model's file"),
    "quantize": (quantize, "write a model's weights for another tool, in 4 or 8 bits"),
    "report": (report, "draw the report of a comparison again"),
    "diff": (diff, "what differs between two runs: config, recipe, data, environment, losses"),
    "bench": (bench, "measure the operators here against a copy, a matmul and other packages"),
    "doctor": (doctor, "what fp4lab finds on this machine, whether it works, and what is missing"),
}


def _usage() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    statuses = "\n".join(f"  {status:<{width}}  {text}" for status, text in STATUSES.items())
    return (
        "usage: fp4lab COMMAND [options]\n\n"
        "Training in 4- and 8-bit floating point, emulated bit for bit on any machine.\n\n"
        f"{commands}\n\n"
        f"exit status:\n{statuses}\n\n"
        "fp4lab COMMAND --help lists the options of a command."
    )


def _as_typed(message: str, words: Sequence[str]) -> str:
    """A message about an argument's value, with the option that gave the value in its place.

    A message about a value that was not typed, as from a file, stays.

    >>> _as_typed("source='/a' is no folder or file; give a path", ["--steps", "9", "--data", "/a"])
    "--data='/a' is no folder or file; give a path"
    """
    found = re.match(r"([\w.]+)=('?)(.*?)\2(?=[ ;,])", message)
    if found is None:
        return message
    argument, _, value = found.groups()
    for option, typed in _typed(words):
        name = _last(option)
        if _last(argument) in {name, *ARGUMENTS.get(name, ())} and any(
            _is_same(value, part) for part in [typed, *typed.split(",")]
        ):
            return option + message[len(argument) :]
    return message


def _cured(message: str) -> str:
    """The arguments that the end of a message gives as the cure, as options.

    >>> _cured("out='x' is there already; add overwrite=True, or give another name")
    "out='x' is there already; add --overwrite, or give another name"
    >>> _cured("'a' holds NaN; leave it as it is with keep=['a b']")
    "'a' holds NaN; leave it as it is with --keep 'a b'"
    """

    def option(found: re.Match[str]) -> str:
        return f"--{CURES[found[1]]}" + (f" {shlex.quote(found[2])}" if found[2] else "")

    before, end, cure = message.partition("; ")
    names = "|".join(CURES)
    return before + end + re.sub(rf"\b({names})=(?:True|\[?'([^']*)'\]?)", option, cure)


def _is_same(value: str, typed: str) -> bool:
    with contextlib.suppress(ValueError):
        return float(value) == float(typed)
    return value.strip() == typed.strip()


def _last(name: str) -> str:
    return name.lstrip("-").replace("-", "_").rpartition(".")[2]


def _typed(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options among words and their values, `--a 1` as `--a=1`."""
    for word, following in pairwise([*words, ""]):
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            yield option, value if equals else following


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
