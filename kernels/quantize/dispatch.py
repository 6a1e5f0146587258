"""One quantization, and who computes it: C, Triton, torch in groups of rows, or the reference.

Every function gives what the reference gives, to the last bit, in the operand's sense: `[M, K]`
with blocks along K, also of a transposed operand.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fp4lab.formats import Level
from fp4lab.kernels import backends
from fp4lab.kernels.minifloat.reference import encode, positive_nan_, rounded_to
from fp4lab.kernels.quantize import chunked, native, reference
from fp4lab.kernels.quantize.native import Made, Want
from fp4lab.kernels.quantize.reference import Encoded, Quantization, Result
from fp4lab.kernels.quantize.scales import stored
from fp4lab.kernels.schema import DTYPES, dense

_VALUES = {dtype: Want(dtype=dtype, amax=False) for dtype in DTYPES}


def codes_and_scales(asked: Quantization) -> list[Tensor]:
    """What is stored: codes `[M, K]` (4-bit ones packed), scales `[R, C]`, tensor scale."""
    fmt = asked.format
    who = _who(asked)
    if who == "triton":
        from fp4lab.kernels.quantize import triton

        return triton.codes_and_scales(asked, native=triton.takes_native(asked))
    if who != "native":
        return _by_torch(
            asked, who, lambda encoded, group: reference.codes_and_scales(encoded, fmt, group.shape)
        )
    # C writes bytes; wider codes are made here
    in_bytes = fmt.element.bits <= 8
    want = Want(Result.CODES) if in_bytes else Want(Result.ELEMENTS, scales=True)
    made = native.quantize(asked, want)
    codes = made.data if in_bytes else encode(made.data.contiguous(), fmt.element)
    if made.scales is None:
        return [codes, made.amax.new_zeros((0, 0)), made.amax]
    scales = stored(made.scales, fmt) if made.scales.dtype == torch.float32 else made.scales
    return [codes, scales, made.amax]


def amax(asked: Quantization) -> Tensor:
    """The second-level amax that the operand would get: float32 `[1]`, `[M]` or `[0]`."""
    fmt = asked.format
    who = _who(asked)
    if who == "triton":
        from fp4lab.kernels.quantize import triton

        return triton.amax(asked)
    if who == "native":
        return native.quantize(asked, Want(Result.NOTHING)).amax
    values = reference.prepare(asked).abs()
    if values.numel() == 0 or fmt.level == Level.NONE:
        return values.new_zeros(reference.amax_shape(fmt, asked.shape[0]))
    most = values.amax(dim=1) if fmt.level == Level.ROW else values.amax().view(1)
    return positive_nan_(most)


def dequantized(asked: Quantization, dtype: torch.dtype) -> Tensor:
    """The numbers that codes and scales stand for: computed in float32, rounded to `dtype`."""
    fmt = asked.format
    who = _who(asked)
    if who == "triton":
        from fp4lab.kernels.quantize import triton

        return triton.dequantized(asked, dtype)
    if who == "native":
        if dtype in _VALUES:
            return native.quantize(asked, _VALUES[dtype]).data
        return native.quantize(asked, _VALUES[torch.float32]).data.to(dtype)
    values, _ = _by_torch(
        asked, who, lambda e, group: [reference.dequantized(e, fmt, group.shape), e.tensor_scale]
    )
    return rounded_to(values, dtype)


def operands(
    asked: Sequence[Quantization], dtype: torch.dtype, turned: bool
) -> list[tuple[Tensor, Tensor]]:
    """What enters a product, and what is left for its epilogue.

    Args:
        asked: one quantization, or that of rows and of columns of the same matrix, which C and
            Triton make from the same reads of it.
        dtype: float32, or bf16 where that holds the numbers.
        turned: give a transposed operand row-major, instead of with the strides of x^T.
    """
    who = [_who(one) for one in asked]
    if all(one == "triton" for one in who):
        from fp4lab.kernels.quantize import triton, triton_pair

        if len(asked) == 1:
            return [triton.operand(asked[0], dtype, turned)]
        straight, across = asked
        return list(triton_pair.operand_pair(straight, across, dtype, turned))
    if not all(one == "native" for one in who):
        return [_operand_by_torch(one, dtype, turned) for one in asked]
    wanted = [
        Want(
            result=Result.ELEMENTS if one.format.whole_rows else Result.OPERAND,
            dtype=dtype,
            scales=one.format.whole_rows,
            turned=turned,
        )
        for one in asked
    ]
    if len(asked) == 1:
        made = [native.quantize(asked[0], wanted[0])]
    else:
        made = native.quantize_both(asked, wanted)
    return [(each.data, _epilogue(each, one)) for each, one in zip(made, asked, strict=True)]


def _epilogue(made: Made, asked: Quantization) -> Tensor:
    scales = made.amax if made.scales is None else made.scales
    return reference.epilogue(scales, made.amax, asked.format, asked.shape[0])


def _operand_by_torch(
    asked: Quantization, dtype: torch.dtype, turned: bool
) -> tuple[Tensor, Tensor]:
    fmt = asked.format

    def finish(encoded: Encoded, group: Quantization) -> list[Tensor]:
        values, _ = reference.operand(encoded, fmt, group.shape)
        scale = encoded.decode_R1C1 if fmt.whole_rows else None
        late = values[:0, :0] if scale is None else scale[:, 0, :, 0]
        return [values, late, encoded.tensor_scale]

    values, scales, tensor_scale = _by_torch(asked, _who(asked), finish)
    epilogue = reference.epilogue(scales, tensor_scale, fmt, asked.shape[0])
    values = rounded_to(values, dtype)
    return dense(values, asked.transposed and not turned), epilogue


def _who(asked: Quantization) -> str:
    """Who computes this case: the backend in force, or the one after it that can."""
    who = backends.chosen(asked.x_MK.device)
    if who == "native":
        return who if native.takes(asked) else "torch"
    if who == "triton":
        # modules of kernels are imported where they are used, for they import Triton
        from fp4lab.kernels.quantize import triton

        return who if triton.takes(asked) else "reference"
    return who


def _by_torch(asked: Quantization, who: str, finish: chunked.Finish) -> list[Tensor]:
    """In groups of rows on a CPU; a GPU's cache would hold none of them."""
    if who == "torch" and chunked.takes(asked):
        return chunked.encoded(asked, finish)
    return finish(reference.encoded(asked), asked)
