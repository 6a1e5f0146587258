"""Quantize, dequantize, fake-quantize and cast tensors."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fp4lab.errors import InputError, expect, unknown, whole
from fp4lab.formats import (
    BlockFormat,
    ElementType,
    Hadamard,
    Overflow,
    Rounding,
    Ties,
    get_element,
)
from fp4lab.functional.arguments import (
    Ragged,
    as_format,
    check_float,
    flattened,
    is_transformed,
    operator_arguments,
)
from fp4lab.kernels import ops
from fp4lab.kernels.philox.reference import layer_key
from fp4lab.tensor import QuantizedTensor


def noise_state(seed: int, layer: str = "", *, step: int = 0, microbatch: int = 0) -> Tensor:
    """What stochastic rounding depends on: int64 `[4]` of key low, key high, step, microbatch.

    The same state gives the same rounding of an element wherever it is computed; another seed,
    layer, step or microbatch gives independent noise. See `fp4lab.kernels.philox.reference`.

    Raises:
        InputError: a step or microbatch that is not an integer in [0, 2^32), a seed outside
            [0, 2^63), a layer that is no string.

    >>> noise_state(0, "blocks.0.mlp.up", step=7)[2:]
    tensor([7, 0])
    """
    expect("layer", layer, str, "give the layer's name")
    key = layer_key(whole("seed", seed, 0, 2**63 - 1), layer)
    step = whole("step", step, 0, 2**32 - 1)
    microbatch = whole("microbatch", microbatch, 0, 2**32 - 1)
    return torch.tensor((*key, step, microbatch), device="cpu")


def quantize(
    x: Tensor,
    fmt: BlockFormat | str,
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
    """Quantize a tensor to codes, block scales and tensor scale.

    Args:
        x: `[.., K]`, any strides, float16 to float64 (float64 is rounded to float32 first).
        fmt: the format, or its name.
        rounding: `Rounding.NEAREST`, or stochastic, which needs `noise`.
        noise: int64 `[4]` from `noise_state`; without a stochastic `rounding` it does nothing, nor
            do `stream`, `row_ids` and `column_offset`.
        stream: number of the operand in its layer; other numbers give independent noise.
        axis: -1: blocks run along the last dimension; -2: along the flattened others.
        hadamard: transform along the blocks before quantization (the result stays transformed, and
            remembers it).
        amax: second-level amax to use (`[1]`, or one per row, at least 0) instead of x's own, which
            is that of the transform after it was rounded to x's dtype. Also where the format stores
            another number (`format.direction`), which is made of it.
        ragged: "error", or "pad": incomplete blocks are filled with zeros that decode to nothing.
        row_ids: global numbers of the rows, int64 `[M]`, for sharded noise.
        column_offset: global number of the first column, likewise.

    Returns:
        a QuantizedTensor of x's shape.

    Zeros decode to exact zeros. A block too small for its scale type decodes to zero. A NaN makes
    its block NaN, and with a second level the whole row or tensor. An infinity makes its block NaN
    (MX, FP8), with a second level the row or tensor infinite or NaN; NVFP4 with one level saturates
    it. Other values beyond the largest saturate. With a second level, an amax above 7e35 overflows
    when it is multiplied back by a block scale of up to 448, in the order of Transformer Engine:
    values become infinite, zeros NaN. A plain cast rounds each element by itself. Formats of other
    tools do what their tool does (`fp4lab.formats.BlockScale`): some make a tensor of zeros NaN.

    Raises:
        InputError: dtype, shape, axis, ragged edge, missing noise, or an amax that does not fit.

    >>> from fp4lab import formats
    >>> quantize(torch.arange(32.0).reshape(2, 16), formats.NVFP4)
    QuantizedTensor(nvfp4 2x16, 5.50 bits a value, amax 31, cpu)
    """
    fmt = as_format(fmt)
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
    codes, scales, tensor_scale = ops.quantize(*arguments)
    return QuantizedTensor(codes, scales, tensor_scale, fmt, x.shape, axis, hadamard)


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


def fake_quantized(x: Tensor, axis: int, arguments: tuple[Any, ...]) -> Tensor:
    """What `fake_quantize` returns, without a gradient; flat arguments after the matrix."""
    flat: Tensor = ops.fake_quantize(flattened(x), *arguments)
    flat = flat.t() if axis == -2 else flat
    return flat if x.dim() == 2 else flat.reshape(x.shape)


class _FakeQuantize(torch.autograd.Function):
    """Quantize and dequantize with a straight-through gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, axis: int, masked: BlockFormat | None, *arguments: Any) -> Tensor:
        return fake_quantized(x, axis, arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        # flat, for the transforms of torch.func cannot see into a tuple of a tuple
        x, axis, masked, *arguments = inputs
        if masked is not None:
            outside = saturated(x, masked, axis, tuple(arguments))
            ctx.save_for_backward(outside)
            # for jvp below
            ctx.save_for_forward(outside)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (_passed(ctx, grad), *[None] * (len(ctx.needs_input_grad) - 1))


class _ForwardFakeQuantize(_FakeQuantize):
    """The same for forward-mode derivatives; torch.compile takes no function that has a jvp."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        # a copy, for a result must not be an argument
        return _passed(ctx, tangent.clone())


def _passed(ctx: Any, change: Tensor) -> Tensor:
    """What is left of a gradient or a tangent: all of it, or what no mask drops."""
    return change.masked_fill(ctx.saved_tensors[0], 0.0) if ctx.saved_tensors else change


def fake_quantize(
    x: Tensor,
    fmt: BlockFormat | str,
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
        fmt: the format, or its name.
        gradient: the straight-through policy. "identity" passes the gradient unchanged; "masked"
            drops it where x lies beyond the largest number of its block. No gradient flows through
            scales.

    The other arguments are those of `quantize`. There is no `hadamard`, for the result stands in
    x's own space; transform x first.

    Returns:
        of x's shape and dtype. Zeros, overflow, NaN and ragged edges: as in `quantize`. The C
        operators take the memory of the result and of a few blocks for each thread; an x in
        float64, or whose rows are not contiguous, is copied first, and "masked" makes codes of x to
        find what lies beyond.

    Raises:
        InputError: as `quantize`, and an unknown gradient.

    >>> from fp4lab import formats
    >>> fake_quantize(torch.tensor([0.1, 1.4, 2.6, 6.0] * 4), formats.NVFP4_ONE_LEVEL)[:4]
    tensor([0.0000, 1.5000, 3.0000, 6.0000])
    """
    if gradient not in ("identity", "masked"):
        raise unknown("gradient", gradient, ("identity", "masked"))
    fmt = as_format(fmt)
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
    # inside a transform x shows neither that nor how it is differentiated around it
    has_tangents = forward_ad._current_level >= 0
    transformed = is_transformed("fake_quantize")
    if not (transformed or has_tangents or (x.requires_grad and torch.is_grad_enabled())):
        return fake_quantized(x, axis, arguments)
    masked = fmt if gradient == "masked" else None
    function = _ForwardFakeQuantize if has_tangents else _FakeQuantize
    result: Tensor = function.apply(x, axis, masked, *arguments)  # type: ignore[no-untyped-call]
    return result


def saturated(x: Tensor, fmt: BlockFormat, axis: int, arguments: tuple[Any, ...]) -> Tensor:
    """Where |x| exceeds the largest number of its block by more than float32 rounding (bool)."""
    matrix = flattened(x.detach())
    codes, scales, tensor_scale = ops.quantize(matrix, *arguments)
    # in both nibbles where two codes share a byte
    full = torch.full_like(codes, fmt.element.max_code * (0x11 if fmt.packed else 1))
    columns = matrix.shape[1] if axis == -1 else matrix.shape[0]
    how = (fmt.definition, columns, torch.float32)
    limit: Tensor = ops.dequantize(full, scales, tensor_scale, *how)
    limit = limit.t() if axis == -2 else limit
    return x.detach().abs() > limit.reshape(x.shape) * (1 + 2.0**-21)


def cast(
    x: Tensor,
    element: ElementType | str,
    *,
    ties: Ties = Ties.EVEN,
    overflow: Overflow = Overflow.SATURATE,
) -> Tensor:
    """Round every element to an element type (or that of a name); float32 in x's shape, no scales.

    Takes float16 to float64 (float64 is rounded to float32 first). Zeros keep their sign, NaN stays
    NaN, also in types without a NaN. `ties` says where a value halfway between two numbers goes,
    `overflow` what one beyond the largest becomes.

    Raises:
        InputError: another dtype, or an element type that is for scales only.

    >>> from fp4lab.formats import E4M3
    >>> cast(torch.tensor([448.0, 464.0, 465.0, 1000.0]), E4M3, overflow=Overflow.SPECIAL)
    tensor([448., 448., nan, nan])
    """
    check_float(x, "x")
    if isinstance(element, str):
        element = get_element(element)
    expect("element", element, ElementType, "use one of fp4lab.formats, such as E2M1")
    expect("ties", ties, Ties, "use one of fp4lab.formats.Ties")
    expect("overflow", overflow, Overflow, "use one of fp4lab.formats.Overflow")
    if not element.has_zero or not element.signed:
        raise InputError(f"element={element.name!r} holds scales only; use it in a BlockFormat")
    rounded: Tensor = ops.cast(x.detach(), element.definition, ties, overflow)
    return rounded
