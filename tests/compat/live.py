"""Random tensors by a tool itself and by its format: run as a script, for a tool at a time.

In a process and a folder of its own, for the tools import transformers, which takes the checkout's
folder `kernels` for a package of that name. Prints how many numbers were compared and how many
differ.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

import fp4lab
from fp4lab import formats as f

ROWS, COLUMNS = 32, 128


def matrices(seed: int) -> Iterator[Tensor]:
    """Normal, of many magnitudes, with zeros, on halves; each in float32 and in bfloat16."""
    draw = torch.Generator().manual_seed(seed)

    def powers(low: int, high: int, columns: int) -> Tensor:
        k = torch.randint(low, high, (ROWS, columns), generator=draw)
        return torch.exp2(k.double()).float().repeat_interleave(COLUMNS // columns, 1)

    normal = torch.randn(ROWS, COLUMNS, generator=draw)
    zeros = normal * (torch.rand(ROWS, COLUMNS, generator=draw) > 0.5)
    zeros[3], zeros[4], zeros[5, :16] = 0.0, -0.0, 0.0
    halves = torch.randint(-24, 25, (ROWS, COLUMNS), generator=draw) / 4
    for x in (
        normal,
        normal * powers(-12, 12, COLUMNS // 16),
        normal * powers(-60, 60, COLUMNS),
        zeros,
        halves * powers(-3, 4, COLUMNS // 16),
    ):
        yield x
        yield x.to(torch.bfloat16)


def compressed_tensors(x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Weights as llm-compressor prepares them and this tool packs them."""
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam

    weights = QuantizationArgs(
        num_bits=4,
        type="float",
        strategy="tensor_group",
        group_size=16,
        symmetric=True,
        scale_dtype=torch.float8_e4m3fn,
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    blocks = x.unflatten(-1, (-1, 16))
    S = generate_gparam(x.min(), x.max())
    scale, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), weights, S)
    state = {"weight": x, "weight_scale": scale, "weight_global_scale": S}
    packed = NVFP4PackedCompressor.compress(state, scheme)
    values = NVFP4PackedCompressor.decompress(packed, scheme)["weight"]
    bf16 = x.dtype == torch.bfloat16
    q = fp4lab.quantize(x, f.NVFP4_COMPRESSED_TENSORS_BF16 if bf16 else f.NVFP4_COMPRESSED_TENSORS)
    yield q.tensor_scale, S
    yield q.scales, packed["weight_scale"].view(torch.uint8)
    yield q.codes, packed["weight_packed"]
    yield q.dequantize(values.dtype), values


def modelopt(x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """NVFP4, and MXFP4 and MXFP8 away from powers of two."""
    from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor
    from modelopt.torch.quantization.qtensor.mxfp8_tensor import MXFP8QTensor
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    tensor, scale, D = NVFP4QTensor.quantize(x.clone(), 16)
    q = fp4lab.quantize(x, f.NVFP4_MODELOPT)
    how = {"scale": scale, "double_scale": D, "block_sizes": {-1: 16}}
    yield q.tensor_scale, D.view(1)
    yield q.scales, scale.view(torch.uint8)
    yield q.codes, tensor._quantized_data
    yield q.dequantize(), tensor.dequantize(torch.float32, **how)
    tensor, scale = MXFP4QTensor.quantize(x.clone(), 32)
    q = fp4lab.quantize(x, f.MXFP4_MODELOPT)
    yield q.scales.view(-1, 1), scale
    yield q.codes, tensor._quantized_data
    tensor, scale = MXFP8QTensor.quantize(x.clone())
    q = fp4lab.quantize(x, f.MXFP8_E4M3)
    yield q.scales, scale
    yield q.codes, tensor._quantized_data.view(torch.uint8)


def main(tool: str) -> None:
    """Compare bytes over some seeds."""
    pairs = {"compressed_tensors": compressed_tensors, "modelopt": modelopt}[tool]
    compared = different = 0
    for seed in range(4):
        for x in matrices(seed):
            for mine, theirs in pairs(x):
                assert mine.shape == theirs.shape
                assert mine.dtype == theirs.dtype
                compared += mine.numel()
                same = mine.contiguous().view(torch.uint8) == theirs.contiguous().view(torch.uint8)
                different += int((~same).sum())
    print(json.dumps({"compared": compared, "different": different}))


if __name__ == "__main__":
    main(sys.argv[1])
