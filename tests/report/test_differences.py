"""What differs between runs is told, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fp4lab import cli, recipes
from fp4lab.errors import InputError
from fp4lab.report import Difference, differences
from fp4lab.report.differences import read_run, shared, warnings
from fp4lab.train import OptimConfig
from tests.report.conftest import write_run


def log(folder: Path, *losses: float) -> None:
    lines = [
        json.dumps({"kind": "train", "step": step, "loss": loss})
        for step, loss in enumerate(losses)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


def change(folder: Path, **values: object) -> None:
    path = folder / "environment.json"
    record = json.loads(path.read_text())
    record["environment"] |= values
    path.write_text(json.dumps(record))


def resume(folder: Path, **values: object) -> None:
    path = folder / "environment.json"
    record = json.loads(path.read_text())
    last = [record["environment"], *record["resumed"]][-1]
    record["resumed"].append(last | values)
    path.write_text(json.dumps(record))


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A run and its repeat."""
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        write_run(folder, recipe="nvfp4")
        log(folder, 5.0, 4.0, 3.0)
    return folders


def test_a_repeat_differs_in_nothing(pair: tuple[Path, Path]) -> None:
    found = differences(*pair)
    assert found.rows == ()
    assert found.recipe == ""
    assert str(found) == (
        "The same config, recipe, data, environment and result.\n"
        "The training losses of all 3 common steps are the same to the last bit."
    )


def test_everything_that_can_change_a_bit_is_told(pair: tuple[Path, Path]) -> None:
    first, second = pair
    optim = OptimConfig(learning_rate=1e-3)
    write_run(second, recipe="nvfp4-sr.dgrad", optim=optim, checkpoint_every=7, tensorboard=True)
    change(second, torch="2.14.0", git="abc")
    resume(second, threads=2)
    log(second, 5.0, 4.000000000000001, 3.0)
    found = differences(str(first), second)
    assert found.rows == (
        Difference("config", "optim.learning_rate", "0.003", "0.001"),
        Difference("recipe", "name", "nvfp4", "nvfp4-sr.dgrad"),
        Difference("recipe", "hash", recipes.get("nvfp4").hash[:12],
                   recipes.get("nvfp4-sr.dgrad").hash[:12]),
        Difference("environment", "torch", "2.13.0", "2.14.0"),
        Difference("environment", "git", "–", "abc"),
        Difference("environment", "changed on resuming", "–", "threads 1 -> 2"),
    )  # fmt: skip
    assert found.recipe == recipes.get("nvfp4").diff(recipes.get("nvfp4-sr.dgrad"))
    assert found.losses == "The training losses differ from step 1 on: 4.0, 4.000000000000001."
    text = str(found).splitlines()
    assert text[0].split() == ["part", "what", "a", "b"]
    assert ["environment", "torch", "2.13.0", "2.14.0"] in [line.split() for line in text]
    assert "  linear.dgrad.a.rounding: stochastic8 -> nearest" in text


def test_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = tmp_path / "here" / "run", tmp_path / "there" / "run"
    for seed, folder in enumerate(folders):
        write_run(folder, seed=seed)
    text = str(differences(*folders))
    assert text.splitlines()[0].split() == ["part", "what", *map(str, folders)]
    assert text.endswith("No step has a training loss in both.")


def test_the_command(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    change(pair[1], torch="2.14.0")
    assert cli.main(["diff", *map(str, pair)]) == 0
    assert capsys.readouterr().out == f"{differences(*pair)}\n"


def test_what_is_no_run(pair: tuple[Path, Path], tmp_path: Path, comparison_folder: Path) -> None:
    with pytest.raises(InputError, match="holds no run; give a folder that fp4lab train"):
        differences(pair[0], tmp_path / "nowhere")
    inner = comparison_folder / "runs" / "bf16-seed0"
    with pytest.raises(InputError, match="holds a comparison; name one of its runs") as caught:
        differences(comparison_folder, pair[0])
    assert str(caught.value).endswith(f"such as {inner}")


def test_a_damaged_record_is_named(
    pair: tuple[Path, Path], broken: Callable[[str], Iterator[str]]
) -> None:
    path = pair[1] / "environment.json"
    record = json.loads(path.read_text())
    for optional in ("resumed", "unreachable"):  # may be absent
        del record[optional]
    for text in broken(json.dumps(record)):
        path.write_text(text)
        with pytest.raises(InputError, match=r"environment\.json") as caught:
            differences(*pair)
        assert "\n" not in str(caught.value)


def six(tmp_path: Path) -> list[Path]:
    """The runs of a comparison of two recipes and three seeds."""
    folders = []
    for recipe in ("bf16", "nvfp4"):
        for seed in range(3):
            folders.append(tmp_path / f"{recipe}-seed{seed}")
            write_run(folders[-1], recipe=recipe, seed=seed)
    return folders


def read(folders: list[Path]) -> list[str]:
    return warnings({folder.name: read_run(folder) for folder in folders})


def test_recipes_and_seeds_are_meant_to_differ(tmp_path: Path) -> None:
    folders = six(tmp_path)
    assert read(folders) == []
    same = shared({folder.name: read_run(folder) for folder in folders})
    assert same["environment", "torch"] == "2.13.0"
    assert same["config", "optim.beta1"] == "0.9"
    assert not {("config", "seed"), ("recipe", "name"), ("config", "recipe")} & same.keys()


def test_the_few_are_named_and_the_many_counted(tmp_path: Path) -> None:
    folders = six(tmp_path)
    change(folders[4], torch="2.14.0")
    resume(folders[0], device="another", threads=2)
    write_run(folders[1], seed=1, steps=3)
    assert read(folders) == [
        "steps (config): 3 in bf16-seed1, 2050 in the other 5 runs.",
        "torch (environment): 2.14.0 in nvfp4-seed1, 2.13.0 in the other 5 runs.",
        "bf16-seed0 was resumed in another environment: device a <fast> one & only -> another,"
        " threads 1 -> 2.",
    ]
    for folder in folders[:4]:
        change(folder, torch="2.12.0")
    change(folders[5], torch="2.11.0", extra=True)
    assert read(folders)[1:3] == [
        "torch (environment): 2.14.0 in nvfp4-seed1, 2.11.0 in nvfp4-seed2, 2.12.0 in the other 4"
        " runs.",
        "extra (environment): True in nvfp4-seed2, – in the other 5 runs.",
    ]


def test_two_runs_are_both_named(tmp_path: Path) -> None:
    folders = six(tmp_path)[::3]
    change(folders[0], torch="2.14.0")
    assert read(folders) == ["torch (environment): 2.13.0 in nvfp4-seed0, 2.14.0 in bf16-seed0."]
