"""Other packages that compute in the same formats, and how each is asked for the same work.

An adapter imports its package when it is called, and says for every piece of work how the package
does it and what values its result stands for. Nothing is installed here: a package that cannot be
imported is named with the command that installs it. To add one, write its adapter and an entry in
`PEERS`. A linear layer quantizes both operands at each call, as quantization-aware training does.
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fp4lab import formats
from fp4lab.bench.rows import dtype_name, one_line
from fp4lab.formats import BlockFormat, Ties

QUANTIZE, FAKE, MX_FAKE = "quantize nvfp4", "fake-quantize nvfp4", "fake-quantize mxfp4"
LINEAR, MX_LINEAR = "linear nvfp4", "linear mxfp4"
KINDS = (QUANTIZE, FAKE, MX_FAKE, LINEAR, MX_LINEAR)
BLOCK, MX_BLOCK = 16, 32

_MX_TIES_ZERO = formats.MXFP4.replace(name="mxfp4_ties_zero", ties=Ties.ZERO)


def _itself(result: Any) -> Tensor:
    """What a fake quantizer or a layer returns is its values."""
    assert isinstance(result, Tensor)
    return result


@dataclass(frozen=True, kw_only=True)
class Work:
    """A piece of work as a package does it.

    Args:
        kind: one of `KINDS`.
        run: of a matrix, or of activations and weights.
        values: the numbers that the result of `run` stands for.
        fmt: our format with the same numbers, but for what the note says.
        note: how the package deviates, as documented.
    """

    kind: str
    run: Callable[..., Any]
    values: Callable[[Any], Tensor] = _itself
    fmt: BlockFormat = formats.NVFP4
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A package: its name, a module that only it has, how it is installed, what it can do."""

    name: str
    module: str
    install: str
    works: Callable[[], Sequence[Work]]

    def load(self) -> tuple[Sequence[Work], str]:
        """Its work, or none of it and the reason in one line."""
        try:
            with on_their_own():
                importlib.import_module(self.module)
                return self.works(), ""
        except ModuleNotFoundError as error:
            if error.name is None:
                return (), one_line(error)
            if error.name.partition(".")[0] == self.module.partition(".")[0]:
                return (), f"not installed; {self.install}"
            return (), f"its import needs {error.name}; pip install {error.name}"
        except Exception as error:  # whatever another package raises must not end our run
            return (), one_line(error)


@contextmanager
def on_their_own() -> Iterator[None]:
    """Other packages' warnings and logs are not shown inside, nor do they see this checkout.

    In a checkout that is searched for modules, the folder `kernels/` hides the package of that name
    which some of them import.
    """
    paths, level = list(sys.path), logging.root.manager.disable
    sys.path[:] = [path for path in paths if not _holds_folder_of_ours(path)]
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        sys.path[:] = paths


def _holds_folder_of_ours(path: str) -> bool:
    return Path(path or ".", "fp4lab", "kernels").is_symlink()


def _torchao() -> list[Work]:
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    def quantize(x: Tensor) -> Any:
        return NVFP4Tensor.to_nvfp4(x, per_tensor_scale=per_tensor_amax_to_scale(x.abs().max()))

    def fake(x: Tensor) -> Any:
        return quantize(x).dequantize(x.dtype)

    def mx_fake(x: Tensor) -> Any:
        return MXTensor.to_mx(x, torch.float4_e2m1fn_x2, MX_BLOCK).dequantize(x.dtype)

    floor = "scales below 2^-6 become 2^-6"
    return [
        Work(kind=QUANTIZE, run=quantize, values=lambda q: q.dequantize(torch.float32), note=floor),
        Work(kind=FAKE, run=fake, note=floor),
        Work(kind=MX_FAKE, run=mx_fake, fmt=formats.get("mxfp4_floor")),
        Work(kind=LINEAR, run=lambda x, w: F.linear(fake(x), fake(w))),
    ]


def _compressed_tensors() -> list[Work]:
    from compressed_tensors.compressors.nvfp4.helpers import (
        quantize_and_pack_fp4,
        unpack_fp4_from_uint8,
    )
    from compressed_tensors.quantization import preset_name_to_scheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize, fake_quantize
    from compressed_tensors.quantization.utils import (
        compute_dynamic_scales_and_zp,
        generate_gparam,
    )

    nv, mx = (preset_name_to_scheme(name, ["Linear"]).weights for name in ("NVFP4", "MXFP4"))

    def scales(x: Tensor) -> Any:
        level = generate_gparam(*torch.aminmax(x))
        return (*compute_dynamic_scales_and_zp(x, nv, None, global_scale=level), level)

    def quantize(x: Tensor) -> Any:
        scale, _, level = scales(x)
        codes = quantize_and_pack_fp4(x, scale, global_scale=level, group_size=BLOCK)
        return codes, scale.to(nv.scale_dtype), level

    def values(result: Any) -> Tensor:
        codes, scale, level = result
        elements = unpack_fp4_from_uint8(codes, codes.shape[0], 2 * codes.shape[1], torch.float32)
        return _itself(dequantize(elements, scale.float(), args=nv, global_scale=level))

    def fake(x: Tensor) -> Any:
        scale, zero, level = scales(x)
        return fake_quantize(x, scale, zero, nv, global_scale=level)

    def mx_fake(x: Tensor) -> Any:
        return fake_quantize(x, *compute_dynamic_scales_and_zp(x, mx, None), mx)

    return [
        Work(kind=QUANTIZE, run=quantize, values=values),
        Work(kind=FAKE, run=fake),
        Work(kind=MX_FAKE, run=mx_fake, fmt=formats.get("mxfp4_even")),
        Work(kind=LINEAR, run=lambda x, w: F.linear(fake(x), fake(w))),
    ]


def _modelopt() -> list[Work]:
    from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    def quantize(x: Tensor) -> Any:
        return NVFP4QTensor.quantize(x, BLOCK)

    def values(result: Any) -> Tensor:
        q, scale, level = result
        return _itself(q.dequantize(scale=scale, double_scale=level, block_sizes={-1: BLOCK}))

    def fake(x: Tensor) -> Tensor:
        return values(quantize(x))

    def mx_fake(x: Tensor) -> Any:
        q, scale = MXFP4QTensor.quantize(x, MX_BLOCK)
        return q.dequantize(scale=scale, block_sizes={-1: MX_BLOCK})

    return [
        Work(kind=QUANTIZE, run=quantize, values=values),
        Work(kind=FAKE, run=fake, note="its fake quantizer is CUDA only: both halves in turn"),
        Work(kind=MX_FAKE, run=mx_fake, fmt=_MX_TIES_ZERO, note="ties go to the smaller magnitude"),
        Work(kind=LINEAR, run=lambda x, w: F.linear(fake(x), fake(w))),
    ]


def _fouroversix() -> list[Work]:
    import fouroversix as package

    config = package.QuantizationConfig(scale_rule="static_6")

    def quantize(x: Tensor) -> Any:
        return package.quantize(x, config)

    def values(q: Any, dtype: torch.dtype = torch.float32) -> Tensor:
        # its default rounds to float16 on the way
        return _itself(package.dequantize(q, dtype, intermediate_dtype=torch.float32))

    def linear(x: Tensor, w: Tensor) -> Any:
        dtype = package.DataType(dtype_name(x.dtype))
        return package.quantized_matmul(
            x, w, input_config=config, other_config=config, out_dtype=dtype
        )

    return [
        Work(kind=QUANTIZE, run=quantize, values=values),
        Work(kind=FAKE, run=lambda x: values(quantize(x), x.dtype)),
        Work(kind=LINEAR, run=linear),
    ]


def _microxcaling() -> list[Work]:
    import mx
    from mx.mx_ops import quantize_mx_op
    from mx.specs import finalize_mx_specs

    kind = "fp4_e2m1"
    elements = dict.fromkeys(("w_elem_format", "a_elem_format"), kind)
    how = {"block_size": MX_BLOCK, "scale_bits": 8, "round": "even", "custom_cuda": False}
    specs = finalize_mx_specs({**elements, **how})

    def mx_fake(x: Tensor) -> Any:
        return quantize_mx_op(x, specs, elem_format=kind, axes=[-1], round="even")

    fmt = formats.get("mxfp4_floor")
    return [
        Work(kind=MX_FAKE, run=mx_fake, fmt=fmt),
        Work(kind=MX_LINEAR, run=lambda x, w: mx.linear(x, w, mx_specs=specs), fmt=fmt),
    ]


PEERS = (
    Peer(
        name="torchao",
        module="torchao.prototype.mx_formats.nvfp4_tensor",
        install="pip install torchao",
        works=_torchao,
    ),
    Peer(
        name="compressed-tensors",
        module="compressed_tensors.compressors.nvfp4",
        install="pip install compressed-tensors",
        works=_compressed_tensors,
    ),
    Peer(
        name="modelopt",
        module="modelopt.torch.quantization.qtensor",
        install="pip install nvidia-modelopt",
        works=_modelopt,
    ),
    Peer(
        name="fouroversix",
        module="fouroversix.quantize",
        install="pip install --no-build-isolation fouroversix (its build needs CUDA's nvcc)",
        works=_fouroversix,
    ),
    Peer(
        name="microxcaling",
        module="mx.mx_ops",
        install="pip install --no-deps git+https://github.com/microsoft/microxcaling",
        works=_microxcaling,
    ),
)
