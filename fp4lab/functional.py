"""The functional face: quantize, dequantize, fake_quantize, scaled_matmul, error, noise_state.

All functions take tensors of any strides and leading dimensions, in float16, bfloat16, float32 or
float64 (converted to float32 first), and see a tensor as the matrix of its last dimension: leading
dimensions are flattened to rows. `axis=-2` lets blocks run along those rows instead.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fp4lab.errors import InputError, unknown
from fp4lab.formats import WHOLE, BlockFormat, ElementType, Hadamard, Overflow, Rounding, Ties
from fp4lab.kernels import ops
from fp4lab.kernels.layout.reference import swizzle_128x4, unswizzle_128x4
from fp4lab.kernels.matmul.reference import epilogue_alpha
from fp4lab.kernels.minifloat import reference as _minifloat
from fp4lab.kernels.philox.reference import layer_key
from fp4lab.tensor import QuantizedTensor

Ragged: TypeAlias = Literal["error", "pad"]
Accumulate: TypeAlias = Literal["exact", "fast"]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def noise_state(seed: int, layer: str = "", *, step: int = 0, microbatch: int = 0) -> Tensor:
    """What stochastic rounding depends on: int64 `[4]` of key low, key high, step, microbatch.

    The same state gives the same rounding of an element wherever it is computed; another seed,
    layer, step or microbatch gives independent noise. See `fp4lab.kernels.philox.reference`.

    >>> noise_state(0, "blocks.0.mlp.up", step=7)[2:]
    tensor([7, 0])
    """
    return torch.tensor((*layer_key(seed, layer), step, microbatch))


def as_matrix(x: Tensor, argument: str = "x") -> Tensor:
    """`[.., K]` as `[M, K]`; InputError for a dtype or shape that cannot be quantized."""
    if x.dtype not in _FLOATS:
        raise InputError(
            f"{argument} has dtype {x.dtype}; quantization takes float16, bfloat16, float32 or "
            f"float64: convert with {argument}.to(torch.float32)"
        )
    if x.dim() == 0:
        raise InputError(f"{argument} is a scalar tensor; give it at least one dimension")
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def check_ragged(
    shape: tuple[int, int], fmt: BlockFormat, hadamard: Hadamard | None, ragged: str, what: str
) -> None:
    """InputError unless whole blocks (and Hadamard blocks) fit the matrix, or `ragged` is "pad"."""
    if ragged not in ("error", "pad"):
        raise unknown("ragged", ragged, ("error", "pad"))
    if hadamard is not None and shape[1] % hadamard.size:
        raise InputError(
            f"{what}: {shape[1]} values along the blocks are not a multiple of the Hadamard size "
            f"{hadamard.size}; choose a smaller size or leave the layer out"
        )
    if ragged == "pad" or fmt.block is None:
        return
    for extent, side, along in zip(shape, fmt.block, ("across", "along"), strict=True):
        if side != WHOLE and extent % side:
            raise InputError(
                f"{what}: {extent} values {along} the blocks are not a multiple of the block side "
                f"{side} of {fmt.name!r}; use ragged='pad', another format, or leave the layer out"
            )


def _arguments(
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
) -> tuple[Any, ...]:
    """The flat arguments of an operator (`fp4lab.kernels.ops`), checked."""
    if not isinstance(fmt, BlockFormat):
        raise InputError(
            f"fmt={fmt!r} is not a BlockFormat; use one from fp4lab.formats or formats.get(name)"
        )
    if axis not in (-1, -2):
        raise InputError(f"axis={axis} is neither -1 (blocks along rows) nor -2 (along columns)")
    matrix = as_matrix(x)
    shape = (matrix.shape[0], matrix.shape[1]) if axis == -1 else matrix.shape[::-1]
    check_ragged((shape[0], shape[1]), fmt, hadamard, ragged, f"x of shape {tuple(x.shape)}")
    if rounding != Rounding.NEAREST and noise is None:
        raise InputError(
            f"noise=None with rounding={rounding.value!r}: stochastic rounding needs "
            "noise=fp4lab.noise_state(seed, ...)"
        )
    return (
        matrix,
        fmt.ints,
        axis == -2,
        hadamard.size if hadamard is not None else 1,
        hadamard.vector if hadamard is not None else [],
        rounding.noise_bits,
        noise,
        stream,
        row_ids,
        column_offset,
        amax,
    )


def quantize(x: Tensor, fmt: BlockFormat, **how: Any) -> QuantizedTensor:
    """Quantize a tensor to codes, block scales and amax.

    Args:
        x: `[.., K]`, any strides, float16 to float64 (float64 is rounded to float32 first).
        fmt: the format.
        rounding: `Rounding.NEAREST`, or stochastic, which needs `noise`.
        noise: int64 `[4]` from `noise_state`.
        stream: number of the operand in its layer; other numbers give independent noise.
        axis: -1: blocks run along the last dimension; -2: along the flattened others.
        hadamard: transform along the blocks before quantization (the result stays transformed).
        amax: second-level amax to use (`[1]`, or one per row) instead of x's own.
        ragged: "error", or "pad": incomplete blocks are filled with zeros that decode to nothing.
        row_ids, column_offset: global row numbers `[M]` and first column, for sharded noise.

    Returns:
        a QuantizedTensor of x's shape.

    Zeros decode to exact zeros. A block too small for its scale type decodes to zero. A NaN makes
    its block (and with a second level its tensor) NaN; values beyond the largest saturate.

    Raises:
        InputError: dtype, shape, axis, ragged edge or missing noise.

    >>> from fp4lab import formats
    >>> quantize(torch.arange(32.0).reshape(2, 16), formats.NVFP4)
    QuantizedTensor(nvfp4 2x16, 7.00 bits a value, amax 31, cpu)
    """
    codes, scales, amax = ops.quantize(*_arguments(x.detach(), fmt, **how))
    return QuantizedTensor(codes, scales, amax, fmt, x.shape, how.get("axis", -1))


def dequantize(q: QuantizedTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values of a quantized tensor in its logical shape; same as `q.dequantize(dtype)`."""
    return q.dequantize(dtype)


class _FakeQuantize(torch.autograd.Function):
    """Quantize and dequantize with a straight-through gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, arguments: tuple[Any, ...], mask: bool) -> Tensor:
        flat: Tensor = ops.fake_quantize(as_matrix(x), *arguments)
        if arguments[1]:
            flat = flat.t()
        y = flat.reshape(x.shape)
        if mask:
            ctx.save_for_backward(saturated(x, arguments))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if not ctx.saved_tensors:
            return grad, None, None
        (outside,) = ctx.saved_tensors
        return grad.masked_fill(outside, 0.0), None, None


def fake_quantize(
    x: Tensor, fmt: BlockFormat, *, gradient: Literal["identity", "masked"] = "identity", **how: Any
) -> Tensor:
    """Quantize and dequantize: the nearest tensor of the format, in x's shape and dtype.

    Bit-equal to `quantize(x, fmt, ...).dequantize(x.dtype)`.

    Args:
        x: as in `quantize`.
        fmt: the format.
        gradient: the straight-through policy. "identity" passes the gradient unchanged; "masked"
            drops it where x lies beyond the largest number of its block. No gradient flows through
            scales.
        **how: as in `quantize`.

    >>> from fp4lab import formats
    >>> fake_quantize(torch.tensor([0.1, 1.4, 2.6, 6.0] * 4), formats.NVFP4_ONE_LEVEL)[:4]
    tensor([0.0000, 1.5000, 3.0000, 6.0000])
    """
    if gradient not in ("identity", "masked"):
        raise unknown("gradient", gradient, ("identity", "masked"))
    arguments = _arguments(x, fmt, **how)[1:]
    result: Tensor = _FakeQuantize.apply(  # type: ignore[no-untyped-call]
        x, arguments, gradient == "masked"
    )
    return result


def saturated(x: Tensor, arguments: tuple[Any, ...]) -> Tensor:
    """Where |x| exceeds the largest number of its block by more than float32 rounding (bool)."""
    codes, scales, amax = ops.quantize(as_matrix(x.detach()), *arguments)
    fmt = BlockFormat.from_ints(arguments[0])
    largest = fmt.element.max_code * (0x11 if fmt.packed else 1)
    columns = x.shape[-1] if not arguments[1] else x.shape[:-1].numel()
    full = torch.full_like(codes, largest)
    limit: Tensor = ops.dequantize(full, scales, amax, arguments[0], columns)
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
        accumulate: "exact": float32 operands and sums. "fast": bf16 operands, and products rounded
            to bf16 before alpha; only where a CPU has bf16 instructions, or on a GPU.
        dtype: of the result.

    Returns:
        `[M, N]`.

    Raises:
        InputError: different K, or "fast" where the machine or the format rules it out.
    """
    if a.matrix_shape[1] != b.matrix_shape[1]:
        raise InputError(
            f"a contracts {a.matrix_shape[1]} values and b {b.matrix_shape[1]}; both must be "
            "quantized along the same dimension (axis=-2 quantizes along rows)"
        )
    fast = check_accumulate(accumulate, a.device, a.format, b.format)
    operands = [ops.stored_operand(*q.parts(), q.format.ints, q.matrix_shape[1]) for q in (a, b)]
    alpha = epilogue_alpha(operands[0][1], operands[1][1], a.format, b.format)
    product: Tensor = ops.matmul(operands[0][0], operands[1][0], alpha, fast)
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
    if device.type == "cpu" and not _cpu_has_bf16():
        raise InputError(
            "accumulate='fast' needs a CPU with AVX512-BF16 or AMX, which this one lacks; use "
            "'exact'"
        )
    return True


def _cpu_has_bf16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


class Error(NamedTuple):
    """How far a tensor moves when it is quantized; every figure from float64 sums.

    Attributes:
        sqnr_db: 10 log10(sum x^2 / sum (q - x)^2); infinity where nothing moved.
        relative_mse: sum (q - x)^2 / sum x^2.
        cosine: <q, x> / (|q| |x|).
        gain: <q, x> / <x, x>; below 1 the tensor shrank.
        underflow: fraction of elements that were not zero and became zero.
        saturation: fraction of elements beyond the largest number of their block.
    """

    sqnr_db: float
    relative_mse: float
    cosine: float
    gain: float
    underflow: float
    saturation: float


def error(x: Tensor, fmt: BlockFormat, **how: Any) -> Error:
    """Quantization error of a tensor (see `Error`); arguments as in `quantize`.

    An all-zero or empty tensor has no error: infinite SQNR, cosine and gain 1.

    >>> from fp4lab import formats
    >>> x = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    >>> round(error(x, formats.NVFP4).sqnr_db, 1)
    20.4
    """
    arguments = _arguments(x.detach(), fmt, **how)
    x_ = x.detach()
    if how.get("hadamard") is not None:
        raise InputError("hadamard in error(): compare in one space; transform x first")
    q = fake_quantize(x_.to(torch.float32), fmt, **how)
    beyond = saturated(x_, arguments[1:]) if fmt.block is not None else torch.zeros_like(x_)
    return compare(q, x_, saturation=beyond.to(torch.float64).mean().item() if x.numel() else 0.0)


def compare(q: Tensor, x: Tensor, *, saturation: float = float("nan")) -> Error:
    """The figures of `Error` for a tensor q that stands for x."""
    if x.numel() == 0:
        return Error(float("inf"), 0.0, 1.0, 1.0, 0.0, 0.0)
    q64, x64 = q.detach().to(torch.float64), x.detach().to(torch.float64)
    power, noise = x64.square().sum(), (q64 - x64).square().sum()
    inner, q_power = (q64 * x64).sum(), q64.square().sum()
    if power == 0:
        exact = bool(noise == 0)
        return Error(
            float("inf") if exact else float("-inf"),
            0.0 if exact else float("inf"),
            1.0 if exact else 0.0,
            1.0,
            0.0,
            saturation,
        )
    ratio = noise / power
    return Error(
        sqnr_db=(-10 * ratio.log10()).item(),
        relative_mse=ratio.item(),
        cosine=(inner / (power * q_power).sqrt()).item() if q_power > 0 else 0.0,
        gain=(inner / power).item(),
        underflow=((q64 == 0) & (x64 != 0)).to(torch.float64).mean().item(),
        saturation=saturation,
    )


def cast(
    x: Tensor,
    element: ElementType,
    *,
    ties: Ties = Ties.EVEN,
    overflow: Overflow = Overflow.SATURATE,
) -> Tensor:
    """Round every element to an element type, without scales; float32 in x's shape.

    Zeros keep their sign, NaN stays NaN. See `Overflow` for values beyond the largest.

    >>> from fp4lab.formats import E4M3
    >>> cast(torch.tensor([448.0, 464.0, 465.0, 1000.0]), E4M3, overflow=Overflow.SPECIAL)
    tensor([448., 448., nan, nan])
    """
    if not element.has_zero:
        raise InputError(f"element={element.name!r} holds scales only; use it in a BlockFormat")
    return _minifloat.round_nearest(x.to(torch.float32), element, ties, overflow)


__all__ = [
    "Error",
    "cast",
    "compare",
    "dequantize",
    "error",
    "fake_quantize",
    "noise_state",
    "quantize",
    "scaled_matmul",
    "swizzle_128x4",
    "unswizzle_128x4",
]
