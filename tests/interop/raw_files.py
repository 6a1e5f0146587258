"""Bytes of small files, right or wrong, for the tests of this folder."""

from __future__ import annotations

import json
import struct
from typing import Any


def safetensors_bytes(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def one(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


def twice(name: str) -> bytes:
    entry = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
    return f'{{"{name}":{entry},"{name}":{entry}}}'.encode()


def string(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


def gguf_bytes(
    *,
    keys: bytes = b"",
    num_keys: int = 0,
    tensors: bytes = b"",
    num_tensors: int = 0,
    version: int = 3,
    data: bytes = b"",
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys) + keys + tensors
    return head + bytes(-len(head) % 32) + data


def tensor(
    name: bytes = b"a",
    sizes: tuple[int, ...] = (4,),
    kind: int = 0,
    offset: int = 0,
    num_sizes: int | None = None,
) -> bytes:
    head = string(name) + struct.pack("<I", len(sizes) if num_sizes is None else num_sizes)
    return head + struct.pack(f"<{len(sizes)}Q", *sizes) + struct.pack("<IQ", kind, offset)


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, value: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + value
