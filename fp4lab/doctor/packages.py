"""The versions of what fp4lab needs, and the packages that add something to it."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch

import fp4lab
from fp4lab.doctor.findings import Line, State
from fp4lab.machine import git_revision

#: the packages that fp4lab cannot do without, as in pyproject.toml
NEEDED = ("torch", "numpy", "scipy", "matplotlib", "safetensors", "tyro", "rich", "jinja2")
#: those that it can do without, and what they are for
OPTIONAL = {
    "tensorboard": "the metrics of a run in TensorBoard",
    "wandb": "the metrics of a run in Weights & Biases",
    "tokenizers": "byte-pair encoding, for `fp4lab data prepare`",
    "gguf": "GGUF files that hold other quantized types",
    "transformers": "a peer of the tests: its models, its Trainer",
    "accelerate": "transformers' Trainer",
    "compressed-tensors": "a peer of the tests and of `fp4lab bench --peers`",
    "nvidia-modelopt": "a peer of the tests and of `fp4lab bench --peers`",
    "torchao": "a peer of `fp4lab bench --peers`",
    "jupytext": "notebooks as scripts",
    "nbmake": "notebooks as tests",
    "ipykernel": "running notebooks",
}


def version(name: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def versions() -> Iterator[Line]:
    """fp4lab and where it lies, Python, and every package that is needed."""
    folder = Path(fp4lab.__file__).parent
    revision = git_revision(folder)
    checkout = f", checkout at {revision}" if revision else ""
    yield Line("versions", "fp4lab", f"{fp4lab.__version__} in {folder}{checkout}")
    yield Line("versions", "python", f"{platform.python_version()}, {platform.platform()}")
    for name in NEEDED:
        # torch tells its own, for it is there even where its metadata is not
        found = torch.__version__ if name == "torch" else version(name)
        if found is None:
            yield Line("versions", name, "missing", State.BROKEN, f"pip install {name}")
        else:
            cuda = f", for CUDA {torch.version.cuda}" if torch.version.cuda else ", without CUDA"
            yield Line("versions", name, found + (cuda if name == "torch" else ""))


def extras() -> Iterator[Line]:
    """Every optional package: its version, or the command that adds it."""
    for name, purpose in OPTIONAL.items():
        found = version(name)
        if found is None:
            yield Line("extras", name, f"missing: {purpose}", State.NOTE, f"pip install {name}")
        else:
            yield Line("extras", name, f"{found}: {purpose}")
