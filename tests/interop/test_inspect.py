"""The figures of a file are those of its tensors."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from scipy import stats

import fp4lab
from fp4lab import InputError, formats, interop
from fp4lab.interop import chunks
from tests.interop.models import contents, folder, random_tensor


def test_figures_are_those_of_error_and_scipy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "VALUES", 1 << 10)
    tensors = {
        "a.weight": random_tensor(256, 128, seed=1),
        "b.weight": random_tensor(64, 48, seed=2, dtype=torch.bfloat16) + 3,
        "c": random_tensor(7, 5, seed=3, dtype=torch.float16),
        "d": random_tensor(33, seed=4),
        "tiny": random_tensor(32, 32, seed=5) * 1e-40,
        "huge": random_tensor(32, 32, seed=6) * 1e34,
    }
    save_file(tensors, tmp_path / "in.safetensors")
    chosen = [formats.NVFP4, formats.NVFP4_16X16, formats.MXFP4, formats.FP8_TENSOR_E4M3]
    chosen += [formats.NVFP4_MODELOPT, formats.BF16]
    found = interop.inspect(tmp_path / "in.safetensors", chosen)
    assert found.layout is None
    assert {row.name for row in found.rows} == set(tensors)
    for row in found.rows:
        x = tensors[row.name].to(torch.float32)
        wide = x.double().flatten()
        assert row.shape == tuple(x.shape)
        assert row.amax == x.abs().max().item()
        rms = wide.square().mean().sqrt().item()
        assert row.amax_over_rms == pytest.approx(row.amax / rms, rel=1e-12)
        kurtosis = stats.kurtosis(wide.numpy(), fisher=False)
        assert row.kurtosis == pytest.approx(kurtosis, rel=1e-9)
        for fmt in chosen:
            expected = fp4lab.error(x, fmt, ragged="pad")
            for got, want in zip(row.errors[fmt.name], expected, strict=True):
                assert got == pytest.approx(want, rel=1e-9, abs=1e-15)
    assert found.rows[0].errors["nvfp4"].underflow > 0


def test_the_worst_is_first(tmp_path: Path) -> None:
    normal = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    tensors = {
        "exact": torch.ones(16, 16),
        "gauss": normal,
        "wild": normal**5,
        "nan": torch.full((16, 16), math.nan),
        "ids": torch.arange(3),
        "none": torch.ones(0, 16),
    }
    save_file(tensors, tmp_path / "in.safetensors")
    path = tmp_path / "in.safetensors"

    def names(sort: str) -> list[str]:
        return [row.name for row in interop.inspect(path, [formats.MXFP4], sort=sort).rows]  # type: ignore[arg-type]

    assert names("sqnr")[0] == "nan"
    assert names("sqnr")[-1] == "exact"
    # neither NaN nor values that are all alike have a kurtosis
    assert names("kurtosis") == ["exact", "nan", "wild", "gauss"]
    assert names("amax")[:2] == ["nan", "wild"]
    assert names("name") == sorted(["exact", "gauss", "wild", "nan"])
    assert interop.inspect(path, [formats.MXFP4]).skipped == {"ids": "I64", "none": "F32"}
    with pytest.raises(InputError, match="sort='worst' is not known; use one of"):
        names("worst")
    plain = interop.inspect(path, [formats.MXFP4]).plain()
    text = json.dumps(plain, allow_nan=False)
    errors = {row["name"]: row["errors"]["mxfp4"] for row in json.loads(text)["rows"]}
    assert errors["exact"]["sqnr_db"] == "inf"
    assert errors["nan"]["sqnr_db"] == "nan"


def test_formats_are_given_by_name_too(tmp_path: Path) -> None:
    path = tmp_path / "in.safetensors"
    save_file({"a.weight": random_tensor(32, 64, seed=1)}, path)
    assert interop.inspect(path, ["mxfp4"]) == interop.inspect(path, [formats.MXFP4])
    with pytest.raises(InputError, match=r"formats='mxfp4' is not a list; give \['mxfp4'\]"):
        interop.inspect(path, "mxfp4")
    with pytest.raises(InputError, match="formats=4 is not a BlockFormat"):
        interop.inspect(path, [4])  # type: ignore[list-item]
    interop.quantize(path, tmp_path / "named", format="mxfp4", layout="modelopt")
    interop.quantize(path, tmp_path / "given", format=formats.MXFP4, layout="modelopt")
    named, given = (contents(tmp_path / name) for name in ("named", "given"))
    assert list(named.values()) == list(given.values())
    with pytest.raises(InputError, match="format='mxpf4' is not known; did you mean 'mxfp4'"):
        interop.quantize(path, tmp_path / "no", format="mxpf4", layout="modelopt")


@pytest.mark.parametrize("layout", ["compressed-tensors", "modelopt", "gguf", "fp4lab"])
def test_what_a_quantized_file_is(tmp_path: Path, layout: str) -> None:
    out = tmp_path / ("out.gguf" if layout == "gguf" else "out")
    source = folder(tmp_path / "in")
    interop.quantize(source, out, format=formats.NVFP4, layout=layout)  # type: ignore[arg-type]
    found = interop.inspect(out)
    assert found.layout == layout
    assert len(found.weights) == 7
    assert not found.rows
    direction = {"compressed-tensors": "encode", "fp4lab": "amax"}.get(layout, "decode")
    assert {row.direction for row in found.weights} == {direction}
    assert all(row.tensor_scale is not None and row.tensor_scale > 0 for row in found.weights)
    both = interop.inspect(out, [formats.NVFP4])
    assert {row.name for row in both.rows} >= {"lm_head.weight", "model.norm.weight"}


def test_a_file_that_is_not_quantized_needs_a_format(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"is not quantized; add a format, such as formats=\['nvfp4'\]"
    ):
        interop.inspect(folder(tmp_path / "in"))
