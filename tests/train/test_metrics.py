from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

from fp4lab.train.listeners import PlainLines, progress
from fp4lab.train.metrics import Event, MetricsFile, read
from fp4lab.train.throughput import PEAK_FLOPS, peak_flops


def train_event(step: int, **more: float) -> Event:
    numbers = {"loss": 2.5, "lr": 1e-3, "grad_norm": 0.5, "tokens_per_second": 12345.6}
    return {"kind": "train", "step": step, **numbers, **more}


def test_lines_round_trip_exactly(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    events = [train_event(1, loss=0.1 + 0.2), {"kind": "eval", "step": 1, "loss": 1e-300}]
    log = MetricsFile(path, step=0)
    for event in events:
        log.write(event)
        # Handed over at once: a reader, or the system after a kill, has it.
        assert read(path)[-1] == event
    log.sync()
    log.close()
    assert read(path) == events


def test_opening_drops_what_lies_beyond_the_step_and_how_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    log = MetricsFile(path, step=0)
    for step in (1, 2, 3):
        log.write(train_event(step))
    log.write({"kind": "end", "step": 2, "reason": "SIGTERM"})
    log.close()
    with path.open("a") as file:
        file.write('{"kind": "train", "step": 2, "lo')
    MetricsFile(path, step=2).close()
    assert read(path) == [train_event(1), train_event(2)]
    assert path.read_text().count("\n") == 2


def test_garbage_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'\xff\xfe\n3\n{"no": "kind"}\n\n{"kind": "eval", "step": 1}\n')
    assert read(path) == [{"kind": "eval", "step": 1}]


def test_nan_is_not_json(tmp_path: Path) -> None:
    log = MetricsFile(tmp_path / "m.jsonl", step=0)
    with pytest.raises(ValueError, match="not JSON compliant"):
        log.write(train_event(1, loss=float("nan")))
    log.close()


def test_plain_lines_are_few_and_say_what_remains() -> None:
    now = 0.0
    stream = io.StringIO()
    show = PlainLines(100, stream, clock=lambda: now)
    for step in range(1, 101):
        now += 1.0
        show(train_event(step, **({"mfu": 0.125} if step == 100 else {})))
    show({"kind": "eval", "step": 100, "loss": 1.5, "bits_per_byte": 2.25})
    show({"kind": "checkpoint", "step": 100, "path": "x"})
    show({"kind": "notice", "step": 100, "text": "[bold] is text, not markup"})
    show({"kind": "end", "step": 100, "reason": "time limit"})
    show({"kind": "end", "step": 100, "reason": "finished"})
    lines = stream.getvalue().splitlines()
    assert lines[0] == "step 1/100  loss 2.5000  lr 1.00e-03  12,346 tokens/s"
    assert lines[1] == "step 11/100  loss 2.5000  lr 1.00e-03  12,346 tokens/s  1:29 left"
    assert lines[10].startswith("step 100/100")
    assert lines[10].endswith("MFU 12.5%")
    assert lines[11:] == [
        "step 100: held-out loss 1.5000  2.2500 bits/byte",
        "[bold] is text, not markup",
        "step 100: stopped by time limit; the same command goes on from here",
    ]


@pytest.mark.parametrize("first", [1, 41])
def test_a_terminal_gets_a_bar(first: int, terminal: io.StringIO) -> None:
    with progress(50, stream=terminal) as show:
        for step in range(first, 51):
            show(train_event(step))
        show({"kind": "notice", "step": 50, "text": "[bold] is text"})
    text = terminal.getvalue()
    assert "50/50" in text
    assert "loss 2.5000" in text
    assert "[bold] is text" in text


def test_no_terminal_gets_plain_lines() -> None:
    stream = io.StringIO()
    with progress(1, stream=stream) as show:
        show(train_event(1))
    assert stream.getvalue() == "step 1/1  loss 2.5000  lr 1.00e-03  12,346 tokens/s\n"


def test_peaks_are_known_by_the_name_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak_flops(torch.device("cpu")) is None
    names = {
        "NVIDIA H100 PCIe": 756e12,
        "NVIDIA H100 80GB HBM3": 989.4e12,
        "NVIDIA H200": 989.4e12,
        "NVIDIA A100-SXM4-80GB": 312e12,
        "Some other GPU": None,
    }
    for name, peak in names.items():
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        assert peak_flops(torch.device("cuda", 0)) == peak
    assert len({name for name, _ in PEAK_FLOPS}) == len(PEAK_FLOPS)
