"""The arguments of the functional face: checked, and made flat for the operators."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fp4lab.errors import InputError, expect, unknown, whole
from fp4lab.formats import WHOLE, BlockFormat, Hadamard, Level, Rounding, get
from fp4lab.kernels.philox.reference import COLUMNS, ROWS
from fp4lab.kernels.schema import Quantizer

Ragged: TypeAlias = Literal["error", "pad"]

RAGGED = ("error", "pad")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_tensor(x: object, argument: str) -> None:
    """InputError unless it is a dense torch.Tensor."""
    if not isinstance(x, Tensor):
        raise InputError(
            f"{argument} is a {type(x).__name__}, not a torch.Tensor; use torch.as_tensor"
        )
    if x.layout != torch.strided or x.is_nested:
        raise InputError(f"{argument} is not a dense tensor; convert it with .to_dense()")


def check_float(x: Tensor, argument: str) -> None:
    """InputError unless it is a tensor of a dtype that can be quantized."""
    check_tensor(x, argument)
    if x.dtype not in _FLOATS:
        raise InputError(
            f"{argument} has dtype {x.dtype}; quantization takes float16, bfloat16, float32 or "
            "float64: convert it with .to(torch.float32)"
        )


def as_matrix(x: Tensor) -> Tensor:
    """`[.., K]` as `[M, K]`; InputError for a dtype or shape that cannot be quantized."""
    check_float(x, "x")
    if x.dim() == 0:
        raise InputError("x is a scalar tensor; give it at least one dimension")
    return flattened(x)


def flattened(x: Tensor) -> Tensor:
    """`[.., K]` as `[M, K]`."""
    return x if x.dim() == 2 else x.reshape(x.shape[:-1].numel(), x.shape[-1])


def check_ragged(
    shape: tuple[int, int],
    fmt: BlockFormat,
    hadamard: Hadamard | None,
    ragged: str,
    what: str,
    sides: tuple[str, str] = ("values across the blocks", "values along the blocks"),
) -> None:
    """Check that a matrix consists of whole blocks and whole Hadamard blocks.

    Args:
        shape: rows and columns of the matrix, blocks along its columns.
        fmt: the format; a plain cast has no blocks to fill.
        hadamard: the transform along the columns.
        ragged: "error", or "pad", which allows incomplete blocks but no incomplete transform.
        what: names the tensor in the message.
        sides: what rows and columns are, in the message.

    Raises:
        InputError: a block that is not whole, or another word for `ragged`.

    >>> from fp4lab import formats
    >>> check_ragged((4, 24), formats.NVFP4, None, "error", "x")
    Traceback (most recent call last):
    fp4lab.errors.InputError: x: 24 values along the blocks are not a multiple of the block side...
    """
    if ragged not in RAGGED:
        raise unknown("ragged", ragged, RAGGED)
    if hadamard is not None and shape[1] % hadamard.size:
        raise InputError(
            f"{what}: {shape[1]} {sides[1]} are not a multiple of the Hadamard size "
            f"{hadamard.size}; append zeros (in a layer: ragged='pad'), choose a smaller size, or "
            "leave the layer out"
        )
    if ragged == "pad" or fmt.block is None:
        return
    for extent, side, name in zip(shape, fmt.block, sides, strict=True):
        if side != WHOLE and extent % side:
            raise InputError(
                f"{what}: {extent} {name} are not a multiple of the block side {side} of "
                f"{fmt.name!r}; use ragged='pad', another format, or leave the layer out"
            )


def is_transformed(what: str) -> bool:
    """Whether torch.func transforms what is computed here.

    InputError where a compiler traces that and gradients count: torch 2.13 then forgets the
    gradient of every `autograd.Function`, and gives 0.
    """
    if not torch._C._are_functorch_transforms_active():
        return False
    counts = torch.is_grad_enabled() or forward_ad._current_level >= 0
    if counts and torch.compiler.is_compiling():
        raise InputError(
            f"{what} inside a transform of torch.func inside torch.compile would have gradients of "
            "0; compile what the transform is applied to, or do without torch.compile"
        )
    return True


def as_format(fmt: BlockFormat | str, argument: str = "fmt") -> BlockFormat:
    """A format itself, or the registered one of a name; InputError for anything else.

    >>> as_format("nvfp4").block
    (1, 16)
    """
    if isinstance(fmt, str):
        return get(fmt)
    expect(argument, fmt, BlockFormat, "use one from fp4lab.formats, or its name")
    return fmt


def operator_arguments(
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
    """The flat arguments of an operator (`fp4lab.kernels.schema`), checked."""
    expect("hadamard", hadamard, Hadamard, "use formats.Hadamard(size), or None", optional=True)
    if type(axis) is not int or axis not in (-1, -2):
        raise InputError(
            f"axis={axis} is neither -1 nor -2; give -1 for blocks along the last dimension, -2 "
            "for blocks along the others"
        )
    matrix = as_matrix(x)
    rows, columns = matrix.shape
    shape = (rows, columns) if axis == -1 else (columns, rows)
    if ragged != "pad" or hadamard is not None:
        check_ragged(shape, fmt, hadamard, ragged, f"x of shape {tuple(x.shape)}")
    if amax is not None:
        _check_amax(amax, fmt, shape[0], x.device)
    expect("rounding", rounding, Rounding, "use Rounding.STOCHASTIC_8 or another of fp4lab.formats")
    if rounding != Rounding.NEAREST and noise is None:
        raise InputError(
            f"noise=None with rounding={rounding.value!r}: stochastic rounding needs "
            "noise=fp4lab.noise_state(seed, ...)"
        )
    if noise is not None or row_ids is not None or stream or column_offset:
        _check_noise(noise, row_ids, column_offset, stream, matrix)
    matrix = matrix.detach() if matrix.requires_grad else matrix
    quantizer = Quantizer(fmt, axis == -2, hadamard, rounding.noise_bits).text
    if noise is None and amax is None:
        return matrix, quantizer
    # no gradient flows through scales
    amax = None if amax is None else amax.detach()
    return matrix, quantizer, noise, stream, row_ids, column_offset, amax


def _may_look(tensor: Tensor) -> bool:
    """Whether to ask for values: on a GPU that waits for it, and where traced there are none."""
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return tensor.device.type == "cpu" and not traced


def _check_amax(amax: Tensor, fmt: BlockFormat, num_rows: int, device: torch.device) -> None:
    check_tensor(amax, "amax")
    if fmt.level == Level.NONE:
        raise InputError(f"amax given, but format {fmt.name!r} has no second level; leave it out")
    expected = num_rows if fmt.level == Level.ROW else 1
    if amax.dim() != 1 or amax.numel() != expected or amax.dtype not in _FLOATS:
        raise InputError(
            f"amax of shape {tuple(amax.shape)} and dtype {amax.dtype}: format {fmt.name!r} needs "
            f"floats of shape ({expected},); reshape it"
        )
    if amax.device != device:
        raise InputError(f"amax is on {amax.device}, x on {device}; move it there")
    if _may_look(amax) and bool((amax < 0).any()):
        raise InputError(f"amax={amax.min().item()} is negative; give the largest magnitude")


def _check_noise(
    noise: Tensor | None, row_ids: Tensor | None, column_offset: int, stream: int, x_MK: Tensor
) -> None:
    num_rows, num_columns = x_MK.shape
    if noise is not None:
        expect("noise", noise, Tensor, "make it with fp4lab.noise_state(seed, ...)")
        check_tensor(noise, "noise")
        if noise.dtype != torch.int64 or noise.shape != (4,):
            raise InputError(
                f"noise of shape {tuple(noise.shape)} and dtype {noise.dtype} is not the int64 "
                "state of 4 numbers; make it with fp4lab.noise_state(seed, ...)"
            )
    if row_ids is not None:
        check_tensor(row_ids, "row_ids")
        if row_ids.dtype != torch.int64 or row_ids.shape != (num_rows,):
            raise InputError(
                f"row_ids of shape {tuple(row_ids.shape)} and dtype {row_ids.dtype}: give one "
                f"int64 number for each of the {num_rows} rows"
            )
        if _may_look(row_ids) and bool(((row_ids < 0) | (row_ids >= ROWS)).any()):
            low, high = row_ids.min().item(), row_ids.max().item()
            raise InputError(
                f"row_ids from {low} to {high} are not in [0, 2^32); number rows from 0"
            )
    for argument, tensor in (("noise", noise), ("row_ids", row_ids)):
        if tensor is not None and tensor.device != x_MK.device and x_MK.device.type != "meta":
            raise InputError(f"{argument} is on {tensor.device}, x on {x_MK.device}; move it there")
    whole("stream", stream, 0, 2**32 - 1)
    whole("column_offset", column_offset, 0, COLUMNS - num_columns)
