"""Damages safetensors and GGUF files at random and reads them; each must end soon and clearly."""

from __future__ import annotations

import json
import random
import resource
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import fp4lab
from fp4lab import InputError, formats, interop

#: of one case: a small file cannot need more (Python's own objects), nor longer
MOST_BYTES, MOST_SECONDS = 64 << 20, 5.0
#: sizes and offsets at which arithmetic of 32 and 64 bits goes wrong
NUMBERS = [0, 1, 2, 15, 16, 17, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63]
NUMBERS += [2**64 - 1]
READ = "read"
#: what stands for a number, a name or a list in JSON
VALUES = [
    *NUMBERS,
    -1,
    0.5,
    1e308,
    None,
    True,
    "",
    "a",
    "F32",
    "\x00",
    "../a",
    [],
    [0],
    {},
    [[]],
    2**70,
]


def good_files() -> dict[str, bytes]:
    """Small files of every layout."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 64, generator=generator)
    files: dict[str, bytes] = {}
    for name, layout, fmt in (
        ("ct", "compressed-tensors", formats.NVFP4),
        ("modelopt", "modelopt", formats.NVFP4),
        ("mx", "modelopt", formats.MXFP8_E4M3),
        ("fp4lab", "fp4lab", formats.NVFP4_16X16),
        ("nvfp4", "gguf", formats.NVFP4),
        ("mxfp4", "gguf", formats.MXFP4),
    ):
        tensors = {
            "a.weight": fp4lab.quantize(x, fmt),
            "a.bias": torch.ones(5),
            "b": torch.arange(3),
        }
        with TemporaryDirectory() as folder:
            end = ".gguf" if layout == "gguf" else ""
            out = Path(folder) / f"out{end}"
            interop.write(tensors, out, layout=layout)  # type: ignore[arg-type]
            file = out if out.is_file() else out / "model.safetensors"
            files[f"{name}{file.suffix}"] = file.read_bytes()
    return files


def flip(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, most of them near the beginning."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        end = len(out) if rng.random() < 0.2 else min(len(out), 1200)
        out[rng.randrange(end)] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(out)


def cut(data: bytes, rng: random.Random) -> bytes:
    """Cut short, or longer, or with a piece in it twice or not at all."""
    a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    more = rng.randbytes(rng.randint(1, 64))
    return rng.choice([data[:a], data + more, data[:b] + data[a:], data[:a] + data[b:]])


def number(data: bytes, rng: random.Random) -> bytes:
    """One number of 4 or 8 bytes replaced by an extreme one."""
    kind = rng.choice("IQ")
    size = struct.calcsize(kind)
    at = rng.randrange(max(min(len(data), 1200) - size, 1))
    value = rng.choice(NUMBERS) & ((1 << (8 * size)) - 1)
    return data[:at] + struct.pack(f"<{kind}", value) + data[at + size :]


def json_header(data: bytes, rng: random.Random) -> bytes:
    """A value of a safetensors header replaced, or a name given twice."""
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    node, keys = table, list(table)
    while True:
        at = rng.choice(keys)
        if not isinstance(node[at], (dict, list)) or not node[at] or rng.random() < 0.3:
            break
        node = node[at]
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    node[at] = rng.choice(VALUES)
    text = json.dumps(table).encode()
    if rng.random() < 0.2:
        name = json.dumps(rng.choice(list(table)))
        text = (
            text[:-1] + f",{name}:{rng.choice(['{}', '1', '[' * 9000, text.decode()])}}}".encode()
        )
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One to three of these in a row."""
    ways: list[Callable[[bytes, random.Random], bytes]] = [flip, cut, number]
    if not data.startswith(b"GGUF") and rng.random() < 0.5:
        data = json_header(data, rng)
    for _ in range(rng.randint(0, 2)):
        data = rng.choice(ways)(data, rng) or b"\0"
    return data


def check(path: Path) -> str:
    """Read all of a file; "read", or the message of the InputError that refuses it."""
    try:
        checkpoint = interop.read(path)
        for name in checkpoint:
            value = checkpoint[name]
            if isinstance(value, fp4lab.QuantizedTensor):
                value.dequantize()
        return READ
    except InputError as error:
        refused = str(error)
    assert "\n" not in refused, refused
    return refused


def fuzz(seconds: float, seed: int, folder: Path) -> tuple[int, int]:
    """Cases, and those that could still be read."""
    rng, files = random.Random(seed), good_files()
    end = time.monotonic() + seconds
    cases = read = 0
    for name, data in files.items():
        (folder / name).write_bytes(data)
        assert check(folder / name) == READ, name
    while time.monotonic() < end:
        name, data = rng.choice(list(files.items()))
        path = folder / name
        path.write_bytes(mutated(data, rng))
        tracemalloc.reset_peak()
        begun, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            read += check(path) == READ
        except BaseException:
            kept = Path(f"fuzz-{seed}-{cases}{path.suffix}").resolve()
            kept.write_bytes(path.read_bytes())
            print(f"case {cases} of seed {seed} is kept as {kept}", flush=True)
            raise
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) << 10
        assert time.process_time() - begun < MOST_SECONDS, f"case {cases} of seed {seed} takes long"
        assert grown < MOST_BYTES, f"case {cases} of seed {seed} takes {grown} bytes"
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES, f"case {cases} of seed {seed}"
        cases += 1
    return cases, read
