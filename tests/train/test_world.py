from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fp4lab.errors import InputError
from fp4lab.train.world import World, choose_device, join

CPU = torch.device("cpu")

SCRIPT = """
import importlib.util, os, sys
from pathlib import Path
from fp4lab.errors import NonFiniteError
from fp4lab.train import FitConfig, fit

spec = importlib.util.spec_from_file_location("small_tasks", sys.argv[1])
small_tasks = sys.modules["small_tasks"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(small_tasks)
out = Path(sys.argv[2])
config = FitConfig(steps=9, microbatches=2, eval_every=4, checkpoint_every=4, device="cpu")
try:
    fit(small_tasks.SmallTask(poisoned=13), recipe=None, config=config, folder=out)
except NonFiniteError as error:
    out.with_name("rank" + os.environ["RANK"]).write_text(str(error))
"""


def test_microbatches_are_shared_in_order() -> None:
    shares = [World(rank, 3, CPU).share(6) for rank in range(3)]
    assert [list(share) for share in shares] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(InputError, match=r"microbatches=4 .* 3 processes; .* --microbatches 3"):
        World(0, 3, CPU).share(4)


def test_alone_everything_is_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with join(CPU) as world:
        assert (world.rank, world.size) == (0, 1)
        x = torch.tensor([1.0, 2.0])
        assert world.sum(x) is x
        assert world.agree("a") == "a"
        assert world.gather(3) == [3]


def test_devices_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == CPU
    with pytest.raises(InputError, match="device='cuda' is not available here"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device("auto") == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(InputError, match="has 2 GPUs, but local rank 2"):
        choose_device("cuda")


@pytest.mark.slow
def test_a_nan_on_one_rank_stops_all_with_the_same_words(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    tasks = Path(__file__).with_name("conftest.py")
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *(str(script), str(tasks), str(tmp_path / "run")),
        ],
        check=True,
        capture_output=True,
        # the tasks import what tests share
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    # Batch 13 is microbatch 1 of the seventh step, which is rank 1's.
    messages = [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)]
    assert messages[0] == messages[1]
    assert "step 7: loss=nan" in messages[0]
    assert "layer '(model)', input (NaN), in microbatch 1" in messages[0]
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000004"]
