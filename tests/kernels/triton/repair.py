"""What Triton's interpreter gets wrong and products need, put right for a test.

It multiplies the bit patterns of bf16 as integers, takes the E4M3 scales of `tl.dot_scaled` for
E8M0, and (in 3.6, with a new NumPy) refuses a loop's end that is known at run time. Quantizing
kernels need none of this: they compute in float32 and integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter


def _float32(handle: Any) -> Any:
    """The numbers of a handle of the interpreter."""
    if handle.dtype == tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)
    if handle.dtype == tl.float8e4nv:
        codes = torch.from_numpy(np.ascontiguousarray(handle.data).view(np.uint8))
        return codes.view(torch.float8_e4m3fn).to(torch.float32).numpy()
    return handle.data


def _dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
    product = np.matmul(_float32(a), _float32(b), dtype=np.float32)
    return interpreter.TensorHandle(product + d.data, d.dtype.scalar)


def repair(patch: pytest.MonkeyPatch) -> None:
    """Put it right until the patch is undone."""
    patch.setattr(interpreter.InterpreterBuilder, "create_dot", _dot)
    patch_tensor = interpreter._patch_lang_tensor

    def patched(tensor: Any, *arguments: Any) -> None:
        patch_tensor(tensor, *arguments)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    patch.setattr(interpreter, "_patch_lang_tensor", patched)
    scale = getattr(interpreter, "_dot_scaled_scale_to_f32", None)
    if scale is not None:

        def repaired(handle: Any, compute_type: Any) -> Any:
            is_e4m3 = handle.dtype == tl.float8e4nv
            return _float32(handle) if is_e4m3 else scale(handle, compute_type)

        patch.setattr(interpreter, "_dot_scaled_scale_to_f32", repaired)
