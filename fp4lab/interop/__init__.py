"""Checkpoints of other tools: compressed-tensors, ModelOpt, GGUF, Hugging Face.

    from fp4lab import interop

    interop.quantize("model", "small", format="nvfp4", layout="compressed-tensors")
    tensors = interop.read("small")             # a mapping; nothing is loaded yet
    tensors["layers.0.mlp.up_proj.weight"]      # a QuantizedTensor
    interop.write(tensors, "model.gguf", layout="gguf")

Nothing in a file is run, and a model need not fit into memory: tensors are read one at a time, and
written to their place at once. Left out: output in several files, layers stored in FP8 or integers,
and the metadata that llama.cpp needs of a model that does not come from a GGUF file.
"""

from fp4lab.interop.checkpoint import Checkpoint, layout_of, read
from fp4lab.interop.inspecting import Inspection, TensorRow, WeightRow, inspect
from fp4lab.interop.quantizing import Row, Summary, quantize
from fp4lab.interop.writing import write

__all__ = [
    "Checkpoint",
    "Inspection",
    "Row",
    "Summary",
    "TensorRow",
    "WeightRow",
    "inspect",
    "layout_of",
    "quantize",
    "read",
    "write",
]
