"""Compiles Triton's kernels for GPUs that need not be there, and prints what came out, as JSON.

The operators are called as ever, on large matrices, but with a `launch` that records instead of
launching: what is compiled is what would run, with the same constants, types and alignments. A
line for each kernel and capability: its PTX's instructions of interest, and its stack, which is
the registers that did not fit.

    python tests/kernels/triton/compile_all.py
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

from fp4lab.kernels.triton import launch

_recorded: list[tuple[Any, tuple[Any, ...], int, dict[str, Any]]] = []


def _record(
    kernel: Any,
    programs: int,
    arguments: tuple[Any, ...],
    *,
    warps: int = 4,
    device: torch.device | None = None,
    **constants: Any,
) -> None:
    _recorded.append((kernel, arguments, warps, constants))


# before the operators take it from there
launch.launch = _record

from fp4lab import formats as f
from fp4lab.kernels.hadamard import triton as hadamard
from fp4lab.kernels.matmul import triton as matmul
from fp4lab.kernels.matmul import triton_grouped, triton_scaled
from fp4lab.kernels.minifloat import triton as minifloat
from fp4lab.kernels.philox import triton as philox
from fp4lab.kernels.quantize import triton as quantize
from fp4lab.kernels.quantize import triton_pair, triton_stored
from fp4lab.kernels.quantize.reference import Noise, Quantization
from fp4lab.kernels.quantize.stored import Stored

N = 4096
SIGNED = f.Hadamard(16, f.NVFP4_SIGNS)
STATE = torch.zeros(4, dtype=torch.int64)
EVERY = (90, 100, 120)
POINTERS = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}
INTERESTING = re.compile(
    r"(?:tcgen05\.mma|wgmma\.mma_async|mma\.sync|cvt\.r[ns]\.satfinite)[\w.:]*"
)
#: what rounds otherwise than the reference: approximations, flushes, and two roundings made one
FORBIDDEN = re.compile(r"div\.full\S*|\S+\.approx\S*|\S+\.ftz\S*|\bfma\.\S+")


def x(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(N, N, dtype=dtype)


def asked(fmt: f.BlockFormat, bits: int = 0, **fields: Any) -> Quantization:
    """Rows of a float32 matrix, unless the fields say otherwise."""
    noise = Noise(STATE, 3, bits) if bits else None
    matrix = fields.pop("x_MK", None)
    return Quantization(x() if matrix is None else matrix, fmt, noise=noise, **fields)


def columns(
    fmt: f.BlockFormat, bits: int, hadamard: f.Hadamard = SIGNED, **fields: Any
) -> Quantization:
    """Columns of a bf16 matrix with a Hadamard transform."""
    fields = {"x_MK": x(torch.bfloat16), **fields}
    return asked(fmt, bits, transposed=True, hadamard=hadamard, **fields)


def dequantized(one: Quantization) -> Tensor:
    return quantize.dequantized(one, one.x_MK.dtype)


def pair() -> Any:
    straight = asked(f.NVFP4, x_MK=x(torch.bfloat16))
    turned = columns(f.NVFP4, 8, x_MK=straight.x_MK)
    return triton_pair.operand_pair(straight, turned, torch.bfloat16, True)


def pair_of_tiles() -> Any:
    straight = asked(f.NVFP4_16X16, x_MK=x(torch.bfloat16))
    return triton_pair.operand_pair(
        straight, straight._replace(transposed=True), torch.bfloat16, True
    )


def codes(fmt: f.BlockFormat, rows: int = N, groups: tuple[int, ...] = ()) -> matmul.Factor:
    assert fmt.block is not None
    values = torch.empty(*groups, rows, N // 2, dtype=torch.uint8)
    scales = torch.empty(*groups, rows, N // fmt.block[1], dtype=torch.uint8)
    return matmul.Factor(values, scales, torch.empty(groups or 1), fmt, N)


def bf16(rows: int = N, groups: tuple[int, ...] = ()) -> matmul.Factor:
    values = torch.empty(*groups, rows, N, dtype=torch.bfloat16)
    return matmul.Factor(values, None, torch.empty(groups or 1), f.NVFP4, N)


def product(a: matmul.Factor, b: matmul.Factor) -> Tensor:
    return matmul.matmul(a, b, torch.bfloat16)


def grouped(a: matmul.Factor, b: matmul.Factor) -> Tensor:
    return triton_grouped.grouped_matmul(a, b, torch.empty(8, dtype=torch.int64), torch.bfloat16)


def scaled(fmt: f.BlockFormat) -> Tensor:
    return triton_scaled.matmul(codes(fmt), codes(fmt), torch.bfloat16)


def stored() -> Tensor:
    one = codes(f.NVFP4)
    assert one.scales is not None
    q = Stored(one.values, one.scales, one.epilogue, f.NVFP4)
    return triton_stored.dequantize(q, N, torch.bfloat16)


def bits(column_offset: int) -> Tensor:
    return philox.random_bits(N, N, STATE, stream=1, bits=8, column_offset=column_offset)


MSE = f.NVFP4_4OVER6.replace(selection=f.Selection.MSE)
HALF, BF16 = x(torch.float16), torch.bfloat16
Call = Callable[[], Any]
#: what is called, for which capabilities; the labels say what the test may expect
CASES: dict[str, tuple[Call, tuple[int, ...]]] = {
    "quantize codes": (lambda: quantize.codes_and_scales(asked(f.NVFP4)), EVERY),
    "quantize stochastic": (lambda: dequantized(asked(f.NVFP4, 8)), EVERY),
    "quantize columns": (lambda: quantize.codes_and_scales(columns(f.NVFP4, 8)), EVERY),
    "quantize columns values": (lambda: quantize.operand(columns(f.NVFP4, 0), BF16), (90, 100)),
    "quantize columns turned": (
        lambda: quantize.operand(columns(f.MXFP4, 8, f.Hadamard(32)), BF16, True),
        (90,),
    ),
    "quantize 16x16": (lambda: dequantized(asked(f.NVFP4_16X16, x_MK=HALF)), EVERY),
    "quantize pair": (pair, EVERY),
    "quantize pair of tiles": (pair_of_tiles, (90,)),
    "quantize 32 bits": (lambda: quantize.operand(asked(f.NVFP4_ROWWISE, 32)), (90,)),
    "quantize mx": (lambda: quantize.codes_and_scales(asked(f.MXFP8_E4M3)), (90, 120)),
    "quantize tensor": (lambda: quantize.operand(asked(f.FP8_TENSOR_E4M3)), (90,)),
    "quantize 128x128": (lambda: dequantized(asked(f.FP8_128X128_E4M3)), (90, 100)),
    "quantize 4over6": (lambda: dequantized(asked(MSE)), (90, 100)),
    "quantize 4over6 16x16": (lambda: dequantized(asked(f.NVFP4_4OVER6_16X16)), (100,)),
    "quantize hadamard 32": (
        lambda: quantize.codes_and_scales(columns(f.MXFP4, 0, f.Hadamard(32))),
        (100,),
    ),
    "quantize native": (
        lambda: quantize.codes_and_scales(asked(f.NVFP4), native=True),
        (100, 120),
    ),
    "quantize native stochastic": (
        lambda: quantize.codes_and_scales(asked(f.NVFP4, 8), native=True),
        (100,),
    ),
    "quantize back": (stored, EVERY),
    "cast": (lambda: minifloat.round_nearest(x(), f.E4M3), EVERY),
    "cast ties": (lambda: minifloat.round_nearest(x(), f.E5M2, f.Ties.AWAY), (100,)),
    "hadamard 128": (lambda: hadamard.hadamard(x(torch.bfloat16), f.Hadamard(128)), (90, 100)),
    "philox": (lambda: bits(0), (90,)),
    "philox ragged": (lambda: bits(5), (90,)),
    "product codes": (lambda: product(codes(f.NVFP4), codes(f.NVFP4)), EVERY),
    "product mx": (lambda: product(codes(f.MXFP4), codes(f.MXFP4)), (90,)),
    "product bf16": (lambda: product(bf16(), bf16()), (90,)),
    "product grouped": (lambda: grouped(bf16(), bf16(512, (8,))), EVERY),
    "product grouped codes": (lambda: grouped(codes(f.NVFP4), codes(f.NVFP4, 512, (8,))), EVERY),
    "scaled nvfp4": (lambda: scaled(f.NVFP4), (100, 120)),
    "scaled mxfp4": (lambda: scaled(f.MXFP4), (100, 120)),
}


def source(kernel: Any, arguments: tuple[Any, ...], constants: dict[str, Any]) -> ASTSource:
    """A kernel with the types and alignments that Triton would see at these arguments."""
    signature = dict.fromkeys(kernel.arg_names, "constexpr")
    constants, attributes = dict(constants), {}
    for index, (name, value) in enumerate(zip(kernel.arg_names, arguments, strict=False)):
        general = name in (kernel.do_not_specialize or ())
        aligned = not general and not isinstance(value, TensorDescriptor | float)
        if value is None or (not general and isinstance(value, int) and value == 1):
            constants[name] = value
            continue
        if isinstance(value, Tensor):
            signature[name] = f"*{POINTERS[value.dtype]}"
            aligned = value.data_ptr() % 16 == 0
        elif isinstance(value, TensorDescriptor):
            sides = ",".join(map(str, value.block_shape))
            signature[name] = f"tensordesc<{POINTERS[value.base.dtype]}[{sides}]>"
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
            aligned = aligned and value % 16 == 0
        if aligned:
            attributes[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)


def stack_of(cubin: bytes) -> int:
    """Bytes of stack a thread takes: registers that did not fit."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+)", text)
    assert found, text
    return int(found.group(1))


def compiled() -> Iterator[dict[str, Any]]:
    """A record for each kernel of each case and capability; the same kernel is compiled once."""
    seen = set()
    for label, (call, capabilities) in CASES.items():
        _recorded.clear()
        call()
        assert _recorded, label
        for kernel, arguments, warps, constants in list(_recorded):
            made = source(kernel, arguments, constants)
            for capability in capabilities:
                options = {"num_warps": warps, "enable_fp_fusion": False}
                key = (made.hash(), warps, capability)
                if key in seen:
                    continue
                seen.add(key)
                target = GPUTarget("cuda", capability, 32)
                binary = triton.compile(made, target=target, options=options)
                ptx = binary.asm["ptx"]
                yield {
                    "case": label,
                    "kernel": kernel.__name__,
                    "capability": capability,
                    "instructions": sorted(set(INTERESTING.findall(ptx))),
                    "forbidden": sorted(set(FORBIDDEN.findall(ptx))),
                    "stack": stack_of(binary.asm["cubin"]),
                    "barriers": ptx.count("bar.sync"),
                }


if __name__ == "__main__":
    for record in compiled():
        print(json.dumps(record), flush=True)
