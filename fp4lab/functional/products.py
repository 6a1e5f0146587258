"""Products of quantized tensors, and of activations with packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fp4lab.errors import InputError, expect, unknown, whole
from fp4lab.formats import BlockFormat
from fp4lab.functional.arguments import check_float
from fp4lab.kernels import ops
from fp4lab.kernels.matmul.dispatch import has_bf16
from fp4lab.kernels.matmul.reference import check_row_counts, epilogue_alpha
from fp4lab.tensor import QuantizedTensor
from fp4lab.tensor.quantized import check_result

Accumulate: TypeAlias = Literal["exact", "fast"]


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
    A tensor that stores its decode scale D, or its encode scale S, puts D, or 1 / S rounded once,
    in the place of amax, and 1 in that of C M: the product of the two numbers is formed first,
    divided by what is left below, and multiplies the float32 sums once.

    Args:
        a: `[M, K]` with blocks along K (or `[K, M]` with axis=-2); leading dimensions are rows.
        b: `[N, K]` likewise; after the same Hadamard transform as a, or none.
        accumulate: "exact": float32 operands and sums. "fast": bf16 operands with float32 sums, and
            products rounded to bf16; only where a CPU has bf16 instructions, or on a GPU.
        dtype: of the result.

    Returns:
        `[M, N]`, without a gradient.

    A NaN in a or b is in the products of every row that it made NaN in `quantize`: those of its
    block, or, with one amax for a tensor, all. What exceeds float32 or `dtype` becomes infinite, or
    NaN where the product of the two amaxes does (near 1e20 each), for that is formed first; where
    it is below 1e-37, results lose bits as subnormal numbers do. K = 0 gives zeros, no rows an
    empty result. Zeros that filled incomplete blocks add nothing.

    Raises:
        InputError: an operand that is not quantized, different K or transforms, a dtype that is not
            a floating-point one, or "fast" where the machine or the format rules it out.

    >>> from fp4lab import formats, quantize
    >>> q = quantize(torch.tensor([[0.0, 1.0, 2.0, 6.0] * 4, [3.0, -6.0] * 8]), formats.NVFP4)
    >>> scaled_matmul(q, q)
    tensor([[ 164., -144.],
            [-144.,  360.]])
    """
    _check_factor("a", a)
    _check_factor("b", b)
    check_result(dtype, "product")
    _check_inner(a, b)
    fast = _check_accumulate(accumulate, a.device, a.format, b.format)
    if fast:
        sides = [(*q.parts(), q.format.definition) for q in (a, b)]
        narrow: Tensor = ops.stored_matmul(*sides[0], *sides[1], a.matrix_shape[1], torch.bfloat16)
        return narrow.to(dtype)
    (a_MK, a_epilogue), (b_NK, b_epilogue) = (_operand(q, torch.float32) for q in (a, b))
    alpha = epilogue_alpha(a_epilogue, b_epilogue, a.format, b.format)
    product: Tensor = ops.matmul(a_MK, b_NK, alpha, torch.float32)
    return product.to(dtype)


def _check_accumulate(accumulate: str, device: torch.device, *fmts: BlockFormat) -> bool:
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


def _check_factor(argument: str, q: object) -> None:
    if not isinstance(q, QuantizedTensor):
        raise InputError(
            f"{argument} is a {type(q).__name__}, not a QuantizedTensor; use fp4lab.quantize"
        )


def _check_inner(a: QuantizedTensor, b: QuantizedTensor) -> None:
    if a.device != b.device:
        raise InputError(f"a is on {a.device}, b on {b.device}; move one by .to(device)")
    if a.matrix_shape[1] != b.matrix_shape[1]:
        raise InputError(
            f"a contracts {a.matrix_shape[1]} values and b {b.matrix_shape[1]}; both must be "
            "quantized along the same dimension (axis=-2 quantizes along rows)"
        )
    if a.transform != b.transform:
        raise InputError(
            f"a is {a!r} and b {b!r}; give hadamard= to both when they are quantized, or to none"
        )


def _operand(q: QuantizedTensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    made: tuple[Tensor, Tensor] = ops.stored_operand(
        *q.parts(), q.format.definition, q.matrix_shape[1], dtype
    )
    return made


def grouped_scaled_matmul(
    a: QuantizedTensor,
    b: Sequence[QuantizedTensor],
    row_counts: Sequence[int],
    *,
    accumulate: Accumulate = "exact",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Consecutive groups of a's rows, each times a matrix of its own: experts of a mixture.

    What `scaled_matmul` of every group gives (sums may be ordered otherwise on a GPU), in one call.

    Args:
        a: `[T, K]`, blocks along K; its rows are sorted by group.
        b: E matrices `[N, K]` of one format, each with its own amax.
        row_counts: how many rows of a belong to each; zeros are allowed, their sum is T.
        accumulate: as in `scaled_matmul`.
        dtype: of the result, as there.

    Returns:
        `[T, N]`, without a gradient.

    NaN, overflow, K = 0, no rows and incomplete blocks: as in `scaled_matmul`. A NaN in one of b
    stays in its group.

    Raises:
        InputError: counts that do not fit a or b, matrices that differ in shape or format, second
            levels per row, or what `scaled_matmul` refuses.

    >>> from fp4lab import formats, quantize
    >>> a = quantize(torch.ones(3, 16), formats.MXFP4.replace(block=(1, 16)))
    >>> experts = [quantize(torch.full((2, 16), x), a.format) for x in (1.0, 2.0, 4.0)]
    >>> grouped_scaled_matmul(a, experts, [2, 0, 1])[:, 0]
    tensor([16., 16., 64.])
    """
    _check_factor("a", a)
    expect("b", b, Sequence, "give a list of QuantizedTensors, one for each group")
    expect("row_counts", row_counts, Sequence, "give a list of integers, one for each group")
    for number, q in enumerate(b):
        _check_factor(f"b[{number}]", q)
        if not q.is_like(b[0]):
            raise InputError(f"b[{number}] is {q!r} and b[0] {b[0]!r}; all must be alike")
    counts = [whole(f"row_counts[{n}]", count, 0, 2**63 - 1) for n, count in enumerate(row_counts)]
    if not b:
        raise InputError("b is empty; give one QuantizedTensor for each group")
    check_row_counts(counts, a.matrix_shape[0], len(b))
    check_result(dtype, "product")
    _check_inner(a, b[0])
    fast = _check_accumulate(accumulate, a.device, a.format, b[0].format)
    narrow = torch.bfloat16 if fast else torch.float32
    a_TK, a_epilogue = _operand(a, narrow)
    values, epilogues = zip(*(_operand(q, narrow) for q in b), strict=True)
    if a_epilogue.dim() == 2 or epilogues[0].dim() == 2:
        raise InputError(
            f"a in {a.format.name!r} and b in {b[0].format.name!r}: scales per row are not applied "
            "to groups; use formats with one second level for a tensor"
        )
    alphas = [
        epilogue_alpha(a_epilogue, one, a.format, q.format)
        for one, q in zip(epilogues, b, strict=True)
    ]
    alpha = None if alphas[0] is None else torch.stack([one for one in alphas if one is not None])
    made: Tensor = ops.grouped_matmul(
        a_TK, torch.stack(values), alpha, torch.tensor(counts, device=a.device), narrow
    )
    return made.to(dtype)


def packed_linear(
    x: Tensor,
    weight: QuantizedTensor,
    *,
    activations: Literal["same", "int8"] = "same",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`x W^T` for a few rows of x, with weights that stay packed: a step of generation.

    On a CPU with the C operators, up to 16 rows read the codes themselves, a seventh of the bytes
    of float32 for NVFP4; otherwise the weights are decoded first. bf16 activations are multiplied
    as bf16 where the CPU does, with float32 sums. Where the magnitude of any of them (of int8
    activations: of any block) is from 2^122 on or NaN, or below 2^-118 and not 0, rows of weights
    are decoded one after another, which is slower.

    Args:
        x: `[.., K]`, float16 to float64 (float64 is rounded to float32 first).
        weight: `[N, K]`, blocks along K. Where it was quantized after a Hadamard transform, x is
            transformed alike first, rounded to its dtype.
        activations: "same", or "int8": x in blocks of 16 with a float32 scale each, rounded to
            `-127 .. 127`, which costs about 0.5 % of accuracy and is faster where the CPU has VNNI.
        dtype: of the result; None: that of x.

    Returns:
        `[.., N]`, without a gradient.

    A NaN in x makes its row of the result NaN, and so does an infinity with int8 activations. A NaN
    in weight is in the columns of all rows of weight that it made NaN in `quantize`. What exceeds
    float32, before or after the tensor scale, or `dtype` becomes infinite; a weight that does
    (element times block scale, from 2^128 on) may give an infinity, NaN or its number. K = 0 gives
    zeros, no rows an empty result. Zeros that filled incomplete blocks of weight add nothing.

    Raises:
        InputError: x is not floating-point, weight is not such a matrix, K differs, or another word
            for `activations`.

    >>> from fp4lab import formats, quantize
    >>> weight = quantize(torch.eye(4, 32), formats.MXFP4)
    >>> packed_linear(torch.arange(32.0), weight)
    tensor([0., 1., 2., 3.])
    """
    check_float(x, "x")
    _check_factor("weight", weight)
    if activations not in ("same", "int8"):
        raise unknown("activations", activations, ("same", "int8"))
    if len(weight.shape) != 2 or weight.axis != -1:
        raise InputError(
            f"weight={weight!r} is no matrix with blocks along its columns; quantize [N, K] with "
            "axis=-1"
        )
    if x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        raise InputError(
            f"x of shape {tuple(x.shape)}: its last dimension must be the {weight.shape[1]} "
            "columns of weight"
        )
    if x.device != weight.device:
        raise InputError(f"x is on {x.device}, weight on {weight.device}; move one of them")
    result = x.dtype if dtype is None else dtype
    check_result(result, "product")
    x_BK = x.detach().reshape(x.shape[:-1].numel(), x.shape[-1])
    if weight.transform:
        x_BK = ops.hadamard(x_BK, weight.transform, 1)
    y_BN: Tensor = ops.packed_matmul(
        x_BK, *weight.parts(), weight.format.definition, activations == "int8"
    )
    return y_BN.to(result).view(*x.shape[:-1], weight.shape[0])
