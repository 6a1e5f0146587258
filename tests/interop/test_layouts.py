"""Codes, scales and tensor scales keep their bits through every layout and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import fp4lab
from fp4lab import InputError, formats, interop
from fp4lab.formats import BlockFormat, Direction
from fp4lab.interop.gguf_blocks import from_blocks, to_blocks
from fp4lab.interop.stored import converted_scale
from tests.interop.models import contents, random_tensor

CT, MO = "compressed-tensors", "modelopt"
FORMATS = (
    "nvfp4",
    "nvfp4_compressed_tensors",
    "nvfp4_modelopt",
    "nvfp4_16x16",
    "nvfp4_4over6",
    "nvfp4_one_level",
    "mxfp4",
    "mxfp4_floor",
    "mxfp4_32x32",
    "mxfp8_e4m3",
    "nvfp4_torchao",
    "nvfp4_ggml",
    "nvfp4_fouroversix",
    "nvfp4_compressed_tensors_bf16",
    "mxfp4_modelopt",
    "mxfp4_ggml",
)
#: whose values have no tensor scale
ONE_LEVEL = ("nvfp4_one_level", "nvfp4_ggml")
EACH = [
    (layout, fmt)
    for layout in (CT, MO, "gguf", "fp4lab")
    for fmt in FORMATS
    if (layout, fmt) != ("gguf", "mxfp8_e4m3")
]


def place(folder: Path, name: str, layout: str) -> Path:
    return folder / (f"{name}.gguf" if layout == "gguf" else name)


def weight(fmt: BlockFormat, seed: int = 0) -> fp4lab.QuantizedTensor:
    return fp4lab.quantize(random_tensor(64, 128, seed=seed), fmt)


@pytest.mark.parametrize(("layout", "name"), EACH)
def test_what_is_written_is_read_and_written_again_bit_for_bit(
    tmp_path: Path, layout: str, name: str
) -> None:
    fmt = formats.get(name)
    tensors = {"a.weight": weight(fmt), "a.bias": random_tensor(64, seed=3, dtype=torch.bfloat16)}
    first, second = (place(tmp_path, n, layout) for n in ("first", "second"))
    interop.write(tensors, first, layout=layout)
    read = interop.read(first)
    interop.write(read, second, layout=layout)
    assert read.layout == interop.layout_of(second) == layout
    assert set(read) == set(tensors)
    written = [list(contents(path).values()) for path in (first, second)]
    assert written[0] == written[1]

    q, back = tensors["a.weight"], read["a.weight"]
    assert isinstance(q, fp4lab.QuantizedTensor)
    assert isinstance(back, fp4lab.QuantizedTensor)
    assert torch.equal(read["a.bias"], tensors["a.bias"])  # type: ignore[arg-type]
    assert torch.equal(back.codes, q.codes)
    assert fmt.block is not None
    side = fmt.block[0] if layout != "fp4lab" else 1
    assert torch.equal(back.scales, q.scales.repeat_interleave(side, 0))
    if layout == "fp4lab":
        assert back.equal(q)
    elif name not in ONE_LEVEL:
        # one division of float32 in q's direction, one in the other's, one product: 2^-24 each
        torch.testing.assert_close(back.dequantize(), q.dequantize(), rtol=6 * 2.0**-24, atol=0)
        assert float(back.dequantize().abs().max()) > 0
    else:
        # a tensor scale of 1 changes nothing
        assert torch.equal(back.dequantize(), q.dequantize())


@pytest.mark.parametrize(
    ("layout", "tensor_scale"), [(CT, "weight_global_scale"), (MO, "weight_scale_2")]
)
def test_the_tensors_of_a_file(tmp_path: Path, layout: str, tensor_scale: str) -> None:
    q = weight(formats.NVFP4)
    interop.write({"a.weight": q}, tmp_path / "out", layout=layout)
    found = load_file(tmp_path / "out" / "model.safetensors")
    codes = "a.weight_packed" if layout == CT else "a.weight"
    assert set(found) == {codes, "a.weight_scale", f"a.{tensor_scale}"}
    assert torch.equal(found[codes], q.codes)
    assert found["a.weight_scale"].dtype == torch.float8_e4m3fn
    assert torch.equal(found["a.weight_scale"].view(torch.uint8), q.scales)
    scale = found[f"a.{tensor_scale}"]
    assert scale.shape == ((1,) if layout == CT else ())
    amax = q.tensor_scale.numpy()
    expected = np.float32(2688) / amax if layout == CT else amax / np.float32(2688)
    assert scale.numpy().reshape(1).tobytes() == expected.tobytes()


def test_fp4lab_load_reads_the_files_and_save_writes_the_same_bytes(tmp_path: Path) -> None:
    tensors = {"a.weight": weight(formats.NVFP4_MODELOPT), "a.bias": torch.ones(3)}
    interop.write(tensors, tmp_path / "a.safetensors", layout="fp4lab")
    fp4lab.save(tensors, tmp_path / "b.safetensors")
    loaded = fp4lab.load(tmp_path / "a.safetensors")
    assert loaded["a.weight"].equal(tensors["a.weight"])  # type: ignore[union-attr,arg-type]
    both = [load_file(tmp_path / f"{n}.safetensors") for n in "ab"]
    assert both[0].keys() == both[1].keys()
    with (
        safe_open(tmp_path / "a.safetensors", "pt") as a,
        safe_open(tmp_path / "b.safetensors", "pt") as b,
    ):
        assert a.metadata() == b.metadata()


def test_blocks_along_the_rows_and_transforms_need_fp4labs_layout(tmp_path: Path) -> None:
    x = random_tensor(64, 128, seed=0)
    turned = fp4lab.quantize(x, formats.NVFP4, axis=-2)
    transformed = fp4lab.quantize(x, formats.NVFP4, hadamard=formats.Hadamard(16))
    interop.write({"a.weight": turned, "b.weight": transformed}, tmp_path / "w", layout="fp4lab")
    read = interop.read(tmp_path / "w")
    assert read["a.weight"].equal(turned)  # type: ignore[union-attr,arg-type]
    assert read["b.weight"].equal(transformed)  # type: ignore[union-attr,arg-type]
    interop.write(read, tmp_path / "again", layout="fp4lab")
    assert interop.read(tmp_path / "again")["a.weight"].equal(turned)  # type: ignore[union-attr,arg-type]
    for q in (turned, transformed):
        with pytest.raises(InputError, match="quantize it along dim -1 without a transform"):
            interop.write({"a.weight": q}, tmp_path / "no", layout=CT)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_compressed_tensors", "nvfp4_modelopt", "mxfp4"])
@pytest.mark.parametrize("layout", [CT, MO, "gguf"])
def test_a_tensor_of_zeros_stays_zero_and_finite(tmp_path: Path, layout: str, name: str) -> None:
    fmt = formats.get(name)
    codes, scales = torch.zeros(32, 32, dtype=torch.uint8), torch.zeros(32, 4, dtype=torch.uint8)
    if name == "mxfp4":
        scales = scales[:, :2]
    outer = torch.zeros(0 if name == "mxfp4" else 1)
    if fmt.direction == Direction.ENCODE:
        outer.fill_(float("inf"))
    q = fp4lab.QuantizedTensor(codes, scales, outer, fmt, torch.Size((32, 64)))
    target = place(tmp_path, "w", layout)
    interop.write({"a.weight": q}, target, layout=layout)
    back = interop.read(target)["a.weight"]
    assert isinstance(back, fp4lab.QuantizedTensor)
    assert torch.equal(back.dequantize(), torch.zeros(32, 64))
    assert back.tensor_scale.tolist() in ([1.0], [])


def test_nan_scales_of_a_zero_tensor_are_read_as_zeros(tmp_path: Path) -> None:
    """ModelOpt 0.47 writes weight_scale_2 = 0 and NaN block scales for a tensor of zeros."""
    file = {
        "a.weight": torch.full((16, 16), 0x77, dtype=torch.uint8),
        "a.weight_scale": torch.full((16, 2), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn),
        "a.weight_scale_2": torch.tensor(0.0),
    }
    save_file(file, tmp_path / "w.safetensors")
    q = interop.read(tmp_path / "w.safetensors")["a.weight"]
    assert isinstance(q, fp4lab.QuantizedTensor)
    assert torch.equal(q.dequantize(), torch.zeros(16, 32))


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("amax", [1e-38, 1e-3, 1.0, 2688.0, 1e30, 3e38])
def test_a_converted_tensor_scale_is_the_nearest_float32(direction: Direction, amax: float) -> None:
    scale = torch.tensor([amax])
    for fmt in (formats.NVFP4, formats.NVFP4_4OVER6):
        result = converted_scale(scale, fmt, direction)
        factor = fmt.amax_factor
        exact = {
            Direction.AMAX: float(scale),
            Direction.ENCODE: factor / float(scale),
            Direction.DECODE: float(scale) / factor,
        }[direction]
        limits = torch.finfo(torch.float32)
        if limits.tiny <= exact <= limits.max:
            assert abs(result.item() / exact - 1) <= 2.0**-24


def test_blocks_of_ggml_hold_the_same_nibbles() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype, side, num_scales in (("MXFP4", 32, 1), ("NVFP4", 16, 4)):
        codes = torch.randint(0, 256, (3, 64), generator=generator, dtype=torch.uint8)
        scales = torch.randint(0, 127, (3, 128 // side), generator=generator, dtype=torch.uint8)
        blocks = to_blocks(codes, scales, dtype)
        back = from_blocks(blocks, dtype)
        assert torch.equal(back[0], codes)
        assert torch.equal(back[1], scales)
        # the nibble of value j of a block, straight from the definition
        values = np.stack((codes.numpy() & 15, codes.numpy() >> 4), -1).reshape(3, -1)
        size = num_scales * (1 + side // 2)
        for row, value in np.ndindex(*values.shape):
            block, within = divmod(value, side * num_scales)
            group, j = divmod(within, side)
            byte = int(blocks[row, block * size + num_scales + group * side // 2 + j % (side // 2)])
            assert (byte >> 4 if j >= side // 2 else byte & 15) == values[row, value]
            assert int(blocks[row, block * size + group]) == int(scales[row, value // side])


def write_ct(path: Path, **changes: Tensor | None) -> Path:
    file: dict[str, Tensor] = {
        "a.weight_packed": torch.full((16, 32), 0x21, dtype=torch.uint8),
        "a.weight_scale": torch.full((16, 4), 0x70, dtype=torch.uint8).view(torch.float8_e4m3fn),
        "a.weight_global_scale": torch.tensor([100.0]),
    }
    merged = {**file, **{f"a.{name}": value for name, value in changes.items()}}
    save_file({n: v for n, v in merged.items() if v is not None}, path)
    return path


def test_names_of_one_tool_beside_the_configuration_of_another_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_ct(folder / "model.safetensors", weight_scale_2=torch.tensor(0.01))
    with pytest.raises(InputError, match=r"weight_scale_2' is not a name of compressed-tensors"):
        interop.read(folder)
    (folder / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": MO}}))
    write_ct(folder / "model.safetensors")
    with pytest.raises(InputError, match="is not a name of modelopt, to which the configuration"):
        interop.read(folder)
    with pytest.raises(InputError, match="is not a name of modelopt, to which the configuration"):
        interop.read(folder / "model.safetensors")
    (folder / "hf_quant_config.json").write_text("{}")
    (folder / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": CT}}))
    with pytest.raises(
        InputError, match=r"config.json says compressed-tensors and hf_quant_config"
    ):
        interop.read(folder)
    (folder / "config.json").write_text(
        json.dumps({"quantization_config": {"quant_method": "gptq"}})
    )
    with pytest.raises(InputError, match="quant_method='gptq'; read are compressed-tensors and"):
        interop.read(folder)


def test_a_tensor_scale_that_proves_the_other_direction_is_refused(tmp_path: Path) -> None:
    # a weight of amax 1: the encode scale is 2688, the decode scale 1 / 2688
    file = write_ct(tmp_path / "w.safetensors", weight_global_scale=torch.tensor([1 / 2688]))
    with pytest.raises(
        InputError, match=r"'a.weight' is 0.000372024: as an encode scale, .* as a decode"
    ):
        interop.read(file)["a.weight"]
    save_file(
        {
            "a.weight": torch.zeros(16, 16, dtype=torch.uint8),
            "a.weight_scale": torch.full((16, 2), 448.0).to(torch.float8_e4m3fn),
            "a.weight_scale_2": torch.tensor(2688.0),
        },
        file,
    )
    with pytest.raises(InputError, match="as a decode scale, which modelopt stores"):
        interop.read(file)["a.weight"]


@pytest.mark.parametrize("layout", [CT, MO, "gguf"])
@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_fouroversix_static_4"])
def test_large_weights_that_were_written_here_are_read(
    tmp_path: Path, layout: str, name: str
) -> None:
    x = random_tensor(32, 64, seed=1) * 1e6
    save_file({"a.weight": x}, tmp_path / "in.safetensors")
    out = place(tmp_path, "out", layout)
    interop.quantize(tmp_path / "in.safetensors", out, format=name, layout=layout)  # type: ignore[arg-type]
    back = interop.read(out)["a.weight"]
    assert fp4lab.functional.compare(back.dequantize(), x).sqnr_db > 15  # type: ignore[union-attr]
    assert len(interop.inspect(out).weights) == 1


def test_a_check_of_tensor_scales_can_be_left_out(tmp_path: Path) -> None:
    file = write_ct(tmp_path / "w.safetensors", weight_global_scale=torch.tensor([1 / 2688]))
    with pytest.raises(InputError, match="or read it with check_scales=False"):
        interop.read(file)["a.weight"]
    q = interop.read(file, check_scales=False)["a.weight"]
    # codes 1 and 2 are 0.5 and 1.0; the block scale is 128
    assert q.dequantize().unique().tolist() == [64.0 * 2688, 128.0 * 2688]  # type: ignore[union-attr]


@pytest.mark.parametrize("layout", [CT, MO, "gguf", "fp4lab"])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_what_reads_as_zeros_stays_zeros_in_every_layout(
    tmp_path: Path, layout: str, zero: float
) -> None:
    q = weight(formats.NVFP4_MODELOPT)
    file = {
        "l.weight": q.codes,
        "l.weight_scale": q.scales.view(torch.float8_e4m3fn),
        "l.weight_scale_2": torch.tensor(zero),
    }
    save_file(file, tmp_path / "w.safetensors")
    read = interop.read(tmp_path / "w.safetensors")
    assert not read["l.weight"].dequantize().any()  # type: ignore[union-attr]
    interop.write(read, place(tmp_path, "out", layout), layout=layout)  # type: ignore[arg-type]
    back = interop.read(place(tmp_path, "out", layout))["l.weight"]
    assert torch.equal(back.dequantize(), torch.zeros(64, 128))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "amax", "layout"),
    [
        ("nvfp4", 1e-36, CT),
        ("nvfp4", 1e-36, MO),
        ("nvfp4", 1e-36, "gguf"),
        ("nvfp4_modelopt", 1e-40, CT),
        ("nvfp4_compressed_tensors", 1e-35, MO),
    ],
)
def test_a_tensor_scale_that_cannot_be_restated_is_refused(
    tmp_path: Path, name: str, amax: float, layout: str
) -> None:
    x = random_tensor(32, 64, seed=1)
    q = fp4lab.quantize(x / x.abs().max() * amax, name)
    with pytest.raises(InputError, match=r"'a.weight' has the tensor scale .* no normal number"):
        interop.write({"a.weight": q}, place(tmp_path, "w", layout), layout=layout)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("layout", [CT, MO, "gguf", "fp4lab"])
@pytest.mark.parametrize(
    "name", ["nvfp4", "nvfp4_modelopt", "nvfp4_torchao", "nvfp4_compressed_tensors", "nvfp4_4over6"]
)
@pytest.mark.parametrize("amax", [1e-300, 1e-44, 1e-42, 1e-38, 1e-36, 1e-34, 1.0, 1e30])
def test_the_error_is_that_of_the_file_however_small_or_large_the_weights(
    tmp_path: Path, layout: str, name: str, amax: float
) -> None:
    x = random_tensor(32, 64, seed=1).double()
    x = x / x.abs().max() * amax
    save_file({"a.weight": x}, tmp_path / "in.safetensors")
    out = place(tmp_path, "out", layout)
    done = interop.quantize(tmp_path / "in.safetensors", out, format=name, layout=layout)  # type: ignore[arg-type]
    back = interop.read(out)["a.weight"].dequantize()  # type: ignore[union-attr]
    assert bool(back.isfinite().all())
    # what is far below the smallest tensor scale is one step of it, or nothing
    assert float(back.abs().max()) <= max(1.2 * amax, 2.0**-129)
    expected = fp4lab.functional.compare(back, x.float())
    assert done.sqnr_db == pytest.approx(expected.sqnr_db, rel=1e-9)
    if amax >= (1e-34 if layout == "fp4lab" else 1e-36):
        assert done.sqnr_db > 15


def test_weights_that_would_decode_to_infinity_are_refused(tmp_path: Path) -> None:
    x = random_tensor(32, 64, seed=1)
    save_file({"a.weight": x / x.abs().max() * 3.4e38}, tmp_path / "in.safetensors")
    with pytest.raises(InputError, match="decodes to infinity; leave it as it is with keep="):
        interop.quantize(
            tmp_path / "in.safetensors", tmp_path / "out", format="nvfp4", layout="fp4lab"
        )


@pytest.mark.parametrize("byte", [0x7F, 0x80, 0xFF])
def test_scales_that_llama_cpp_reads_as_other_numbers_are_refused(
    tmp_path: Path, byte: int
) -> None:
    for fmt, odd in ((formats.NVFP4, True), (formats.MXFP4, byte == 0xFF)):
        path = tmp_path / f"{fmt.name}.gguf"
        interop.write({"a.weight": weight(fmt)}, path, layout="gguf")
        entry = interop.read(path).source.entries["a.weight"]
        data = bytearray(path.read_bytes())
        data[entry.offset] = byte
        path.write_bytes(data)
        read = interop.read(path)
        if odd:
            with pytest.raises(InputError, match="has 1 block scales that are negative or NaN"):
                read["a.weight"]
        else:
            assert isinstance(read["a.weight"], fp4lab.QuantizedTensor)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("-inf"), 0.0, -0.0])
def test_a_tensor_scale_that_is_no_scale_is_refused(tmp_path: Path, value: float) -> None:
    file = write_ct(tmp_path / "w.safetensors", weight_global_scale=torch.tensor([value]))
    with pytest.raises(InputError, match="is negative, infinite or NaN"):
        interop.read(file)["a.weight"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_scale": torch.ones(16, 2)}, "that is no NVFP4, MXFP4 or MXFP8"),
        ({"weight_scale": None}, "that is no NVFP4"),
        ({"weight_packed": None}, "that is no NVFP4"),
        ({"weight_packed": torch.zeros(16, 16, dtype=torch.int32)}, "that is no NVFP4"),
        ({"weight_global_scale": torch.ones(2)}, "'a.weight' has 2 tensor scales"),
        ({"weight_packed": torch.zeros(16, dtype=torch.uint8)}, "codes of 1 dimensions"),
        ({"weight_packed": torch.zeros(16, 24, dtype=torch.uint8)}, "a.weight.scales of shape"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    tmp_path: Path, changes: dict[str, Tensor | None], message: str
) -> None:
    file = write_ct(tmp_path / "w.safetensors", **changes)
    with pytest.raises(InputError, match=message):
        interop.read(file)["a.weight"]


def test_nan_is_read_as_it_is_and_never_written(tmp_path: Path) -> None:
    scales = torch.full((16, 4), 0x70, dtype=torch.uint8)
    scales[3, 1] = 0x7F
    file = write_ct(tmp_path / "w.safetensors", weight_scale=scales.view(torch.float8_e4m3fn))
    read = interop.read(file)
    q = read["a.weight"]
    assert isinstance(q, fp4lab.QuantizedTensor)
    assert int(q.dequantize().isnan().sum()) == 16
    for layout, target in ((MO, tmp_path / "mo"), ("gguf", tmp_path / "w.gguf")):
        with pytest.raises(
            InputError, match=r"'a.weight' holds NaN or infinity \(1 scales or codes"
        ):
            interop.write(read, target, layout=layout)
        assert not target.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"w.safetensors"}


def test_scales_of_inputs_change_name_and_direction_with_the_layout(tmp_path: Path) -> None:
    file = write_ct(tmp_path / "w.safetensors", input_global_scale=torch.tensor([8.0]))
    interop.write(interop.read(file), tmp_path / "mo", layout=MO)
    read = interop.read(tmp_path / "mo")
    assert read["a.input_scale"].item() == 0.125  # type: ignore[union-attr]
    described = json.loads((tmp_path / "mo" / "hf_quant_config.json").read_text())
    assert described["quantization"]["quant_algo"] == "NVFP4"
    interop.write(read, tmp_path / "ct", layout=CT)
    assert interop.read(tmp_path / "ct")["a.input_global_scale"].item() == 8.0  # type: ignore[union-attr]
    config = json.loads((tmp_path / "ct" / "config.json").read_text())["quantization_config"]
    assert config["config_groups"]["group_0"]["input_activations"]["dynamic"] == "local"
    zero = write_ct(tmp_path / "w.safetensors", input_global_scale=torch.tensor([0.0]))
    with pytest.raises(
        InputError, match=r"'a.input_global_scale' is no scale that can be inverted"
    ):
        interop.write(interop.read(zero), tmp_path / "no", layout=MO)


@pytest.mark.parametrize("word", ["pre_quant_scale", "weight_g_idx", "weight_zero_point"])
def test_what_changes_the_meaning_of_a_weight_is_refused(tmp_path: Path, word: str) -> None:
    file = write_ct(tmp_path / "w.safetensors", **{word: torch.ones(64)})
    with pytest.raises(InputError, match=f"'a.{word}' changes what the weight beside it means"):
        interop.read(file)


def model_of(folder: Path, layout: str, config: dict[str, Any], **changes: Tensor) -> Path:
    """A folder of one weight with a configuration, and hf_quant_config.json for ModelOpt."""
    folder.mkdir()
    write_ct(folder / "model.safetensors", **changes)
    (folder / "config.json").write_text(json.dumps({KEY: {"quant_method": layout, **config}}))
    return folder


KEY = "quantization_config"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_algo": "NVFP4_AWQ"}, "quant_algo='NVFP4_AWQ'; read are NVFP4, W4A16_NVFP4"),
        ({"quant_algo": ["NVFP4"]}, r"quant_algo=\['NVFP4'\]; read are"),
        ({"transform_config": {"R1": {"type": "hadamard"}}}, "transformed .transform_config"),
    ],
)
def test_a_configuration_of_weights_that_mean_something_else_is_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    source = model_of(tmp_path / "in", CT, config)
    with pytest.raises(InputError, match=message):
        interop.read(source)
    (source / "config.json").unlink()
    (source / "hf_quant_config.json").write_text(json.dumps({"quantization": config}))
    with pytest.raises(InputError, match=message):
        interop.read(source)


@pytest.mark.parametrize(
    "config",
    [
        {"kv_cache_scheme": {"num_bits": 8, "type": "float"}},
        {"config_groups": {"group_0": {"input_activations": {"num_bits": 4, "dynamic": True}}}},
    ],
)
def test_what_else_is_quantized_goes_along_or_is_refused(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    source = model_of(tmp_path / "in", CT, config, k_scale=torch.tensor([0.1]))
    interop.write(interop.read(source), tmp_path / "same", layout=CT)
    assert contents(tmp_path / "same").keys() >= {"same/config.json", "same/model.safetensors"}
    for name in ("in", "same"):
        found = json.loads((tmp_path / name / "config.json").read_text())
        assert found == {KEY: {"quant_method": CT, **config}}
    assert "a.k_scale" in interop.read(tmp_path / "same")
    for layout in (MO, "gguf", "fp4lab"):
        with pytest.raises(InputError, match=rf"quantized too.* the layout {layout} would lose"):
            interop.write(interop.read(source), place(tmp_path, "no", layout), layout=layout)  # type: ignore[arg-type]


def test_a_head_that_is_quantized_is_not_ignored(tmp_path: Path) -> None:
    q = weight(formats.NVFP4)
    config = {"architectures": ["LlamaForCausalLM"]}
    for names, ignored in ((["a"], ["lm_head"]), (["a", "lm_head"], [])):
        tensors = {f"{name}.weight": q for name in names}
        interop.write(tensors, tmp_path / names[-1], layout=CT, config=config)
        found = json.loads((tmp_path / names[-1] / "config.json").read_text())
        assert found[KEY]["ignore"] == ignored


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        ("BertForMaskedLM", "cls.predictions.decoder"),
        ("RobertaForMaskedLM", "lm_head.decoder"),
        ("AlbertForMaskedLM", "predictions.decoder"),
        ("DistilBertForMaskedLM", "vocab_projector"),
        ("ModernBertForMaskedLM", "decoder"),
    ],
)
def test_heads_that_share_the_embedding_are_ignored(tmp_path: Path, kind: str, head: str) -> None:
    config = {"architectures": [kind]}
    interop.write({"a.weight": weight(formats.NVFP4)}, tmp_path / "out", layout=CT, config=config)
    assert head in json.loads((tmp_path / "out" / "config.json").read_text())[KEY]["ignore"]


def test_what_a_layout_has_no_place_for_is_refused(tmp_path: Path) -> None:
    rowwise = weight(formats.NVFP4_ROWWISE)
    plain = {"b": torch.ones(2)}
    for layout, tensors, message in (
        (CT, {"a.weight": rowwise}, "format='nvfp4_rowwise' has no place in compressed-tensors"),
        ("gguf", {"a.weight": weight(formats.MXFP8_E4M3)}, "has no place in gguf"),
        (CT, {"a": weight(formats.NVFP4)}, "its name does not end in .weight"),
        (CT, {"a.weight": weight(formats.NVFP4), "b.weight": weight(formats.MXFP4)}, "one kind"),
        (CT, plain, "nothing is quantized"),
        (CT, {"a.weight": weight(formats.NVFP4), "a.weight_packed": torch.ones(1)}, "two tensors"),
        (
            "gguf",
            {"b": torch.ones(2, dtype=torch.bool)},
            "the dtype BOOL, which GGUF does not know",
        ),
        ("gguf", {"b" * 70: torch.ones(2)}, "longer than the 63 bytes"),
        ("gguf", {"b": torch.ones(1, 1, 1, 1, 1)}, "5 dimensions, and GGUF 4 at most"),
        ("fp4lab", {"b": [1.0]}, r"tensors\['b'\] is a list"),
        (
            "fp4lab",
            {"b": torch.ones(1, dtype=torch.complex128)},
            "complex128, which no layout knows",
        ),
        ("fp8", plain, "layout='fp8' is not known; use one of"),
    ):
        with pytest.raises(InputError, match=message):
            interop.write(tensors, place(tmp_path, "w", layout), layout=layout)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_gguf_refuses_rows_that_are_not_whole_blocks_of_64(tmp_path: Path) -> None:
    q = fp4lab.quantize(random_tensor(16, 96, seed=0), formats.NVFP4)
    with pytest.raises(InputError, match="96 columns do not fit blocks of 64"):
        interop.write({"a.weight": q}, tmp_path / "w.gguf", layout="gguf")
