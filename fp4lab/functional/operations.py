"""Quantize, dequantize, fake-quantize, multiply and cast tensors."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from fp4lab.errors import InputError, expect, unknown, whole
from fp4lab.formats import BlockFormat, ElementType, Hadamard, Overflow, Rounding, Ties
from fp4lab.functional.arguments import (
    Ragged,
    as_matrix,
    check_float,
    operator_arguments,
)
from fp4lab.kernels import ops
from fp4lab.kernels.matmul.dispatch import has_bf16
from fp4lab.kernels.matmul.reference import epilogue_alpha
from fp4lab.kernels.philox.reference import layer_key
from fp4lab.tensor import QuantizedTensor

Accumulate: TypeAlias = Literal["exact", "fast"]


def noise_state(seed: int, layer: str = "", *, step: int = 0, microbatch: int = 0) -> Tensor:
    """What stochastic rounding depends on: int64 `[4]` of key low, key high, step, microbatch.

    The same state gives the same rounding of an element wherever it is computed; another seed,
    layer, step or microbatch gives independent noise. See `fp4lab.kernels.philox.reference`.

    Raises:
        InputError: a step or microbatch that is not an integer in [0, 2^32), a seed outside
            [0, 2^63).

    >>> noise_state(0, "blocks.0.mlp.up", step=7)[2:]
    tensor([7, 0])
    """
    expect("layer", layer, str, "give the layer's name")
    key = layer_key(whole("seed", seed, 0, 2**63 - 1), layer)
    step = whole("step", step, 0, 2**32 - 1)
    return torch.tensor((*key, step, whole("microbatch", microbatch, 0, 2**32 - 1)))


def quantize(
    x: Tensor,
    fmt: BlockFormat,
    *,
    rounding: Rounding = Rounding.NEAREST,
    noise: Tensor | None = None,
    stream: int = 0,
    axis: int = -1,
    hadamard: Hadamard | None = None,
    amax: Tensor | None = None,
    ragged: Ragged = "error",
    row_ids: Tensor | None = None,
    column_offset: int = 0,
) -> QuantizedTensor:
    """Quantize a tensor to codes, block scales and amax.

    Args:
        x: `[.., K]`, any strides, float16 to float64 (float64 is rounded to float32 first).
        fmt: the format.
        rounding: `Rounding.NEAREST`, or stochastic, which needs `noise`.
        noise: int64 `[4]` from `noise_state`.
        stream: number of the operand in its layer; other numbers give independent noise.
        axis: -1: blocks run along the last dimension; -2: along the flattened others.
        hadamard: transform along the blocks before quantization (the result stays transformed).
        amax: second-level amax to use (`[1]`, or one per row, at least 0) instead of x's own, which
            is that of the transform after it was rounded to x's dtype.
        ragged: "error", or "pad": incomplete blocks are filled with zeros that decode to nothing.
        row_ids, column_offset: global row numbers `[M]` and first column, for sharded noise.

    Returns:
        a QuantizedTensor of x's shape.

    Zeros decode to exact zeros. A block too small for its scale type decodes to zero. A NaN makes
    its block NaN, and with a second level the whole row or tensor. An infinity makes its block NaN
    (MX, FP8), with a second level the row or tensor infinite or NaN; NVFP4 with one level saturates
    it. Other values beyond the largest saturate. With a second level, an amax above 7e35 overflows
    when it is multiplied back by a block scale of up to 448, in the order of Transformer Engine:
    values become infinite, zeros NaN. A plain cast rounds each element by itself.

    Raises:
        InputError: dtype, shape, axis, ragged edge, missing noise, or an amax that does not fit.

    >>> from fp4lab import formats
    >>> quantize(torch.arange(32.0).reshape(2, 16), formats.NVFP4)
    QuantizedTensor(nvfp4 2x16, 5.50 bits a value, amax 31, cpu)
    """
    arguments = operator_arguments(
        x,
        fmt,
        rounding=rounding,
        noise=noise,
        stream=stream,
        axis=axis,
        hadamard=hadamard,
        amax=amax,
        ragged=ragged,
        row_ids=row_ids,
        column_offset=column_offset,
    )
    codes, scales, amax = ops.quantize(*arguments)
    return QuantizedTensor(codes, scales, amax, fmt, x.shape, axis)


def dequantize(q: QuantizedTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values of a quantized tensor in its logical shape; same as `q.dequantize(dtype)`.

    They are computed in float32, then rounded to `dtype`. A tensor that was transformed before it
    was quantized stays transformed.

    Raises:
        InputError: q is no QuantizedTensor, or dtype is not a floating-point one.

    >>> from fp4lab import formats
    >>> dequantize(quantize(torch.tensor([0.1, 1.4, 2.6, 6.0] * 4), formats.NVFP4))[:4]
    tensor([0.0000, 1.5000, 3.0000, 6.0000])
    """
    if not isinstance(q, QuantizedTensor):
        raise InputError(f"q={type(q).__name__} is not a QuantizedTensor; quantize it first")
    return q.dequantize(dtype)


def fake_quantized(x: Tensor, arguments: tuple[Any, ...]) -> Tensor:
    """What `fake_quantize` returns, without a gradient; flat arguments after the matrix."""
    flat: Tensor = ops.fake_quantize(as_matrix(x), *arguments)
    return (flat.t() if arguments[1] else flat).reshape(x.shape)


class _FakeQuantize(torch.autograd.Function):
    """Quantize and dequantize with a straight-through gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, arguments: tuple[Any, ...], largest: int | None) -> Tensor:
        y = fake_quantized(x, arguments)
        if largest is not None:
            ctx.save_for_backward(saturated(x, arguments, largest))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if not ctx.saved_tensors:
            return grad, None, None
        (outside,) = ctx.saved_tensors
        return grad.masked_fill(outside, 0.0), None, None


def fake_quantize(
    x: Tensor,
    fmt: BlockFormat,
    *,
    gradient: Literal["identity", "masked"] = "identity",
    rounding: Rounding = Rounding.NEAREST,
    noise: Tensor | None = None,
    stream: int = 0,
    axis: int = -1,
    amax: Tensor | None = None,
    ragged: Ragged = "error",
    row_ids: Tensor | None = None,
    column_offset: int = 0,
) -> Tensor:
    """Quantize and dequantize: the nearest tensor of the format, in x's shape and dtype.

    Bit-equal to `quantize(x, fmt, ...).dequantize(x.dtype)`, but for a NaN in a format whose
    elements and scales have no code for it: it stays NaN here and is stored as 0 there.

    Args:
        x: as in `quantize`.
        fmt: the format.
        gradient: the straight-through policy. "identity" passes the gradient unchanged; "masked"
            drops it where x lies beyond the largest number of its block. No gradient flows through
            scales.
        rounding and the rest: as in `quantize`. There is no `hadamard`, for the result stands in
            x's own space; transform x first.

    Raises:
        InputError: as `quantize`, and an unknown gradient.

    >>> from fp4lab import formats
    >>> fake_quantize(torch.tensor([0.1, 1.4, 2.6, 6.0] * 4), formats.NVFP4_ONE_LEVEL)[:4]
    tensor([0.0000, 1.5000, 3.0000, 6.0000])
    """
    if gradient not in ("identity", "masked"):
        raise unknown("gradient", gradient, ("identity", "masked"))
    arguments = operator_arguments(
        x,
        fmt,
        rounding=rounding,
        noise=noise,
        stream=stream,
        axis=axis,
        amax=amax,
        ragged=ragged,
        row_ids=row_ids,
        column_offset=column_offset,
    )[1:]
    largest = largest_code(fmt) if gradient == "masked" else None
    result: Tensor = _FakeQuantize.apply(x, arguments, largest)  # type: ignore[no-untyped-call]
    return result


def largest_code(fmt: BlockFormat) -> int:
    """The code of the largest element, in both nibbles where two share a byte."""
    return fmt.element.max_code * (0x11 if fmt.packed else 1)


def saturated(x: Tensor, arguments: tuple[Any, ...], largest: int) -> Tensor:
    """Where |x| exceeds the largest number of its block by more than float32 rounding (bool).

    `largest` is the format's `largest_code`.
    """
    codes, scales, amax = ops.quantize(as_matrix(x.detach()), *arguments)
    columns = x.shape[-1] if not arguments[1] else x.shape[:-1].numel()
    full = torch.full_like(codes, largest)
    limit: Tensor = ops.dequantize(full, scales, amax, arguments[0], columns, torch.float32)
    limit = limit.t() if arguments[1] else limit
    return x.detach().abs() > limit.reshape(x.shape) * (1 + 2.0**-21)


def scaled_matmul(
    a: QuantizedTensor,
    b: QuantizedTensor,
    *,
    accumulate: Accumulate = "exact",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """`a @ b^T` of two quantized tensors, contracted along their blocks.

    One matmul of elements times block scales; the tensor scales multiply its output once:
    `alpha = amax_a amax_b / (C_a M_a C_b M_b)`. Equal to Transformer Engine's reference GEMM.

    Args:
        a: `[M, K]` with blocks along K (or `[K, M]` with axis=-2); leading dimensions are rows.
        b: `[N, K]` likewise.
        accumulate: "exact": float32 operands and sums. "fast": bf16 operands with float32 sums, and
            products rounded to bf16; only where a CPU has bf16 instructions, or on a GPU.
        dtype: of the result.

    Returns:
        `[M, N]`.

    Raises:
        InputError: an operand that is not quantized, different K, a dtype that is not a
            floating-point one, or "fast" where the machine or the format rules it out.

    >>> from fp4lab import formats
    >>> q = quantize(torch.tensor([[0.0, 1.0, 2.0, 6.0] * 4, [3.0, -6.0] * 8]), formats.NVFP4)
    >>> scaled_matmul(q, q)
    tensor([[ 164., -144.],
            [-144.,  360.]])
    """
    for argument, q in (("a", a), ("b", b)):
        if not isinstance(q, QuantizedTensor):
            raise InputError(
                f"{argument} is a {type(q).__name__}, not a QuantizedTensor; use fp4lab.quantize"
            )
    expect("dtype", dtype, torch.dtype, "use torch.float32 or another floating-point dtype")
    if not dtype.is_floating_point:
        raise InputError(f"dtype={dtype} cannot hold the product; use a floating-point dtype")
    if a.matrix_shape[1] != b.matrix_shape[1]:
        raise InputError(
            f"a contracts {a.matrix_shape[1]} values and b {b.matrix_shape[1]}; both must be "
            "quantized along the same dimension (axis=-2 quantizes along rows)"
        )
    fast = check_accumulate(accumulate, a.device, a.format, b.format)
    K = a.matrix_shape[1]
    sides = [(*q.parts(), q.format.ints) for q in (a, b)]
    if fast:
        narrow: Tensor = ops.stored_matmul(*sides[0], *sides[1], K, torch.bfloat16)
        return narrow.to(dtype)
    operands = [ops.stored_operand(*side, K, torch.float32) for side in sides]
    alpha = epilogue_alpha(operands[0][1], operands[1][1], a.format, b.format)
    product: Tensor = ops.matmul(operands[0][0], operands[1][0], alpha, torch.float32)
    return product.to(dtype)


def check_accumulate(accumulate: str, device: torch.device, *fmts: BlockFormat) -> bool:
    """Whether to multiply in bf16; InputError where "fast" would be wrong or slow."""
    if accumulate not in ("exact", "fast"):
        raise unknown("accumulate", accumulate, ("exact", "fast"))
    if accumulate == "exact":
        return False
    for fmt in fmts:
        if not fmt.operand_fits_bf16:
            raise InputError(
                f"accumulate='fast' with format {fmt.name!r}: element times block scale needs more "
                "than bf16's 8 bits; use 'exact'"
            )
    if not has_bf16(device):
        raise InputError(
            "accumulate='fast' needs a GPU, or a CPU with AVX512-BF16 or AMX, which this one "
            "lacks; use 'exact'"
        )
    return True


def cast(
    x: Tensor,
    element: ElementType,
    *,
    ties: Ties = Ties.EVEN,
    overflow: Overflow = Overflow.SATURATE,
) -> Tensor:
    """Round every element to an element type, without scales; float32 in x's shape.

    Takes float16 to float64 (float64 is rounded to float32 first). Zeros keep their sign, NaN stays
    NaN, also in types without a NaN. See `Overflow` for values beyond the largest.

    Raises:
        InputError: another dtype, or an element type that is for scales only.

    >>> from fp4lab.formats import E4M3
    >>> cast(torch.tensor([448.0, 464.0, 465.0, 1000.0]), E4M3, overflow=Overflow.SPECIAL)
    tensor([448., 448., nan, nan])
    """
    check_float(x, "x")
    expect("element", element, ElementType, "use one of fp4lab.formats, such as E2M1")
    expect("ties", ties, Ties, "use one of fp4lab.formats.Ties")
    expect("overflow", overflow, Overflow, "use one of fp4lab.formats.Overflow")
    if not element.has_zero or not element.signed:
        raise InputError(f"element={element.name!r} holds scales only; use it in a BlockFormat")
    rounded: Tensor = ops.cast(x.detach(), element.ints, ties, overflow)
    return rounded
