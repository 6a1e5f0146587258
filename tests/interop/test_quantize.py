"""Quantizing files gives what fp4lab.quantize gives, and leaves everything else as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import fp4lab
from fp4lab import InputError, formats, interop
from fp4lab.interop import chunks
from fp4lab.interop.choices import fused
from tests.interop.models import LAYER, LINEAR, OTHER, contents, folder, random_tensor, state

FORMATS = ("nvfp4", "nvfp4_16x16", "nvfp4_rowwise", "nvfp4_4over6", "nvfp4_modelopt")
TOOLS = ("nvfp4_torchao", "nvfp4_compressed_tensors_bf16", "nvfp4_fouroversix", "mxfp4_ggml")
MORE = ("nvfp4_compressed_tensors", "mxfp4_floor", "mxfp8_e5m2", "fp8_tensor_e4m3", "fp8_row_e4m3")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", [*FORMATS, *MORE, *TOOLS, "fp8_128x128_e4m3", "bf16"])
def test_a_file_is_quantized_as_its_tensors_are(
    tmp_path: Path, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "VALUES", 1 << 11)
    x = random_tensor(256, 128, seed=1, dtype=dtype)
    save_file({"a.weight": x}, tmp_path / "in.safetensors")
    fmt = formats.get(name)
    out = tmp_path / "out.safetensors"
    done = interop.quantize(tmp_path / "in.safetensors", out, format=fmt, layout="fp4lab")
    expected = fp4lab.quantize(x.to(torch.float32), fmt)
    found = fp4lab.load(out)["a.weight"]
    assert isinstance(found, fp4lab.QuantizedTensor)
    assert found.equal(expected)
    figures = fp4lab.error(x.to(torch.float32), fmt)
    assert done.rows[0].sqnr_db == pytest.approx(figures.sqnr_db, rel=1e-12)
    assert done.sqnr_db == done.rows[0].sqnr_db
    assert done.rows[0].nbytes_after == expected.nbytes


@pytest.mark.parametrize("layout", ["compressed-tensors", "modelopt"])
def test_a_model_of_hugging_face(tmp_path: Path, layout: str) -> None:
    tensors = state()
    source, out = folder(tmp_path / "model", tensors), tmp_path / "out"
    before = contents(source)
    done = interop.quantize(source, out, format=formats.NVFP4_MODELOPT, layout=layout)
    assert contents(source) == before
    assert {row.name for row in done.rows if not row.kept} == set(LINEAR)
    assert {row.name: row.kept for row in done.rows if row.kept} == {
        "model.embed_tokens.weight": "embedding",
        "lm_head.weight": "head",
        **{name: "1-D" for name, shape in OTHER.items() if len(shape) == 1},
    }
    assert done.nbytes_before == sum(t.numel() * 2 for t in tensors.values())
    stored = load_file(out / "model.safetensors")
    assert done.nbytes_after == sum(t.numel() * t.element_size() for t in stored.values())
    for name in OTHER:
        assert torch.equal(stored[name], tensors[name])
    others = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    extra = {"hf_quant_config.json"} if layout == "modelopt" else set()
    assert others - extra == {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "1_Pooling/config.json",
    }
    config = json.loads((out / "config.json").read_text())
    method = config.pop("quantization_config")
    assert method["quant_method"] == layout
    assert method["ignore"] == ["lm_head", "model.embed_tokens"]
    assert config == json.loads((source / "config.json").read_text())


def test_fused_projections_share_the_largest_amax(tmp_path: Path) -> None:
    tensors = state(torch.float32)
    source = folder(tmp_path / "model", tensors)
    fmt = formats.NVFP4
    done = interop.quantize(source, tmp_path / "out", format=fmt, layout="fp4lab")
    attention, mlp = f"{LAYER}.self_attn", f"{LAYER}.mlp"
    groups = [
        [f"{attention}.{name}_proj.weight" for name in "qkv"],
        [f"{mlp}.{name}_proj.weight" for name in ("gate", "up")],
    ]
    assert sorted(map(sorted, done.groups)) == sorted(map(sorted, groups))
    read = interop.read(tmp_path / "out")
    for group in groups:
        amax = torch.stack([tensors[name].abs().max() for name in group]).max().reshape(1)
        for name in group:
            expected = fp4lab.quantize(tensors[name], fmt, amax=amax)
            assert read[name].equal(expected)  # type: ignore[union-attr,arg-type]
    alone = f"{attention}.o_proj.weight"
    assert read[alone].equal(fp4lab.quantize(tensors[alone], fmt))  # type: ignore[union-attr,arg-type]
    interop.quantize(source, tmp_path / "each", format=fmt, layout="fp4lab", share=False)
    read = interop.read(tmp_path / "each")
    for name in LINEAR:
        assert read[name].equal(fp4lab.quantize(tensors[name], fmt))  # type: ignore[union-attr,arg-type]


def test_groups_are_known_by_the_names_of_several_families() -> None:
    for words in (
        ("attention.self.query", "attention.self.key", "attention.self.value"),
        ("attn.q_proj", "attn.k_proj", "attn.v_proj"),
        ("mlp.experts.3.gate_proj", "mlp.experts.3.up_proj"),
        ("experts.0.w1", "experts.0.w3"),
        ("blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v"),
    ):
        names = [f"l.{word}.weight" for word in words]
        more = ["l.attn.o_proj.weight", "m.attn.k_proj.weight", "l.experts.1.w3.weight"]
        assert fused([*names, *more]) == {name: tuple(names) for name in names}


def test_a_model_in_several_files_gives_the_bytes_of_one_in_one_file(tmp_path: Path) -> None:
    tensors = state()
    whole, parts = folder(tmp_path / "whole", tensors), folder(tmp_path / "parts", tensors)
    (parts / "model.safetensors").unlink()
    names = sorted(tensors)
    table = {}
    for at in range(3):
        file = f"model-{at + 1:05d}-of-00003.safetensors"
        save_file({name: tensors[name] for name in names[at::3]}, parts / file)
        table |= dict.fromkeys(names[at::3], file)
    index = {"metadata": {"total_size": 1}, "weight_map": table}
    (parts / "model.safetensors.index.json").write_text(json.dumps(index))
    found = []
    for source in (whole, parts):
        out = tmp_path / f"{source.name}-out"
        interop.quantize(source, out, format=formats.MXFP4, layout="compressed-tensors")
        found.append([(name.split("/", 1)[1], data) for name, data in contents(out).items()])
    assert sorted(found[0]) == sorted(found[1])


def test_links_are_followed_into_the_cache_and_nowhere_else(tmp_path: Path) -> None:
    source = folder(tmp_path / "cache" / "snapshots" / "abc")
    blobs = tmp_path / "cache" / "blobs"
    blobs.mkdir()
    for name in ("tokenizer.json", "config.json", "model.safetensors"):
        (source / name).rename(blobs / name)
        (source / name).symlink_to(f"../../blobs/{name}")
    out = tmp_path / "out"
    interop.quantize(source, out, format=formats.NVFP4, layout="modelopt")
    assert (out / "tokenizer.json").read_bytes() == (blobs / "tokenizer.json").read_bytes()
    assert not any(path.is_symlink() for path in out.rglob("*"))
    (tmp_path / "secret").write_text("mine")
    (source / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=r"notes.txt is a link to .*secret, outside of the model"):
        interop.quantize(source, tmp_path / "no", format=formats.NVFP4, layout="modelopt")
    assert not (tmp_path / "no").exists()


def test_a_model_that_transformers_loads_in_another_dtype_has_a_note(tmp_path: Path) -> None:
    for dtype, said in ((torch.float32, "F32"), (torch.bfloat16, "")):
        source = folder(tmp_path / f"in{said}", state(dtype))
        for layout in ("compressed-tensors", "modelopt"):
            out = tmp_path / f"{layout}{said}"
            done = interop.quantize(source, out, format="nvfp4", layout=layout)  # type: ignore[arg-type]
            assert bool(done.dtype_note) == bool(said and layout == "compressed-tensors")
            assert layout == "modelopt" or said in done.dtype_note


def test_patterns_keep_tensors_and_must_match(tmp_path: Path) -> None:
    source = folder(tmp_path / "model")
    keep = ["*.self_attn.*", f"{LAYER}.mlp.down_proj.weight", "*.mlp.up_proj"]
    out = tmp_path / "out"
    done = interop.quantize(source, out, format=formats.NVFP4, layout="modelopt", keep=keep)
    assert [row.name for row in done.rows if not row.kept] == [f"{LAYER}.mlp.gate_proj.weight"]
    kept = {row.name: row.kept for row in done.rows}
    assert kept[f"{LAYER}.self_attn.q_proj.weight"] == "keep='*.self_attn.*'"
    assert kept["lm_head.weight"] == "head"
    described = json.loads((out / "hf_quant_config.json").read_text())["quantization"]
    assert f"{LAYER}.mlp.up_proj" in described["exclude_modules"]
    with pytest.raises(InputError, match=r"keep='\*.attn.\*' matches no tensor"):
        interop.quantize(
            source, tmp_path / "no", format=formats.NVFP4, layout="modelopt", keep=["*.attn.*"]
        )
    with pytest.raises(InputError, match="has no tensor to quantize to 'nvfp4'"):
        interop.quantize(
            source, tmp_path / "no", format=formats.NVFP4, layout="modelopt", keep=["*"]
        )


def test_what_stays_in_high_precision_by_default(tmp_path: Path) -> None:
    names = {
        "transformer.wte.weight": "embedding",
        "bert.embeddings.word_embeddings.weight": "embedding",
        "token_embd.weight": "embedding",
        "output.weight": "head",
        "score.weight": "head",
        "cls.predictions.decoder.weight": "head",
        "l.0.mlp.gate.weight": "router",
        "blk.0.ffn_gate_inp.weight": "router",
        "l.0.ln_1.weight": "norm",
        "l.0.mlp.gate_proj.weight": "",
        "encoder.layer.0.output.dense.weight": "",
        "l.0.linear.weight": "",
        "odd.weight": "24 columns do not fit blocks of 16",
        "conv.weight": "4-D",
        "l.0.bias": "bias",
        "ids": "I64",
        "parametrized": "its name does not end in .weight",
        "none.weight": "empty",
        "l.1.mlp.shared_expert_gate.weight": "router",
        "l.1.feed_forward.gate.weight": "router",
        "l.1.moe.gate.wg.weight": "router",
        "qa_outputs.weight": "head",
        "classifier.dense.weight": "head",
        "classifier.out_proj.weight": "head",
        "lm_head.dense.weight": "head",
        "lm_head.decoder.weight": "head",
        "lm_heads.0.weight": "head",
        "v_head.summary.weight": "head",
        "e.0.relative_attention_bias.weight": "bias",
        "rwkv.emb.weight": "embedding",
        "l.1.pos_emb.weight": "embedding",
        "l.1.feed_forward.up.weight": "",
        "l.1.embodied.gate_up.weight": "",
    }
    shapes = {"odd.weight": (32, 24), "conv.weight": (2, 2, 4, 16), "l.0.bias": (32,)}
    shapes["none.weight"] = (0, 16)
    file = {
        name: torch.ones(shapes.get(name, (32, 64)), dtype=torch.int64 if name == "ids" else None)
        for name in names
    }
    save_file(file, tmp_path / "in.safetensors")
    done = interop.quantize(
        tmp_path / "in.safetensors", tmp_path / "out", format=formats.NVFP4, layout="modelopt"
    )
    assert {row.name: row.kept for row in done.rows} == names


def test_parameters_that_are_no_weights_of_layers_are_kept_in_every_layout(tmp_path: Path) -> None:
    names = {
        "l.mamba.A_log": "no weight of a layer",
        "l.rotary.inv_freq": "no weight of a layer",
        "l.rotary_emb.inv_freq": "embedding",
        "l.alibi": "bias",
        "l.attn.r_w_bias": "bias",
        "final_logits_bias": "bias",
        "l.attn.relative_position_bias_table": "bias",
        "mask_token": "embedding",
        "l.experts": "",
    }
    save_file({name: torch.ones(32, 64) for name in names}, tmp_path / "in.safetensors")
    for layout, out in (("fp4lab", "out"), ("gguf", "out.gguf")):
        done = interop.quantize(
            tmp_path / "in.safetensors",
            tmp_path / out,
            format="nvfp4",
            layout=layout,  # type: ignore[arg-type]
        )
        assert {row.name: row.kept for row in done.rows} == names


@pytest.mark.parametrize(
    ("codes", "scales"),
    [
        ("m.qweight", "m.scales"),
        ("m.weight", "m.scales"),
        ("m.weight", "m.weight_scale_inv"),
        ("m.weight", "m.weight.absmax"),
        ("m.down_blocks", "m.down_scales"),
    ],
)
@pytest.mark.parametrize("layout", ["fp4lab", "gguf"])
def test_what_another_tool_has_quantized_is_refused(
    tmp_path: Path, codes: str, scales: str, layout: str
) -> None:
    file = {codes: torch.ones(64, 8, dtype=torch.int32), scales: torch.ones(64, 64)}
    save_file({**file, "x.weight": torch.ones(64, 64)}, tmp_path / "in.safetensors")
    out = tmp_path / ("o.gguf" if layout == "gguf" else "o")
    with pytest.raises(InputError, match="it is quantized already, by a tool whose"):
        interop.quantize(tmp_path / "in.safetensors", out, format="nvfp4", layout=layout)  # type: ignore[arg-type]
    # scales that belong to no codes are weights as any other
    save_file({"m.scales": torch.ones(64, 64)}, tmp_path / "in.safetensors")
    interop.quantize(tmp_path / "in.safetensors", out, format="nvfp4", layout=layout)  # type: ignore[arg-type]


def test_layers_that_are_stored_the_other_way_round_are_kept(tmp_path: Path) -> None:
    model = tmp_path / "gpt2"
    model.mkdir()
    file = {"h.0.mlp.c_fc.weight": torch.ones(16, 64), "h.0.other.weight": torch.ones(16, 64)}
    save_file(file, model / "model.safetensors")
    (model / "config.json").write_text('{"model_type": "gpt2"}')
    done = interop.quantize(model, tmp_path / "out", format=formats.NVFP4, layout="fp4lab")
    assert {row.name: row.kept for row in done.rows} == {
        "h.0.mlp.c_fc.weight": "stored as [inputs, outputs]",
        "h.0.other.weight": "",
    }
    done = interop.quantize(
        model / "model.safetensors", tmp_path / "file", format="nvfp4", layout="fp4lab"
    )
    assert done.rows[0].kept == "stored as [inputs, outputs]"
    (model / "model.safetensors").rename(tmp_path / "alone.safetensors")
    done = interop.quantize(
        tmp_path / "alone.safetensors", tmp_path / "alone", format="nvfp4", layout="fp4lab"
    )
    assert done.rows[0].kept.endswith("and no config.json says what it is")


def test_a_head_that_shares_the_embedding_is_left_out_by_the_configuration(tmp_path: Path) -> None:
    tensors = state()
    del tensors["lm_head.weight"]
    source = folder(tmp_path / "model", tensors)
    out = tmp_path / "out"
    interop.quantize(source, out, format=formats.NVFP4, layout="compressed-tensors")
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert config["ignore"] == ["model.embed_tokens", "lm_head"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_is_refused_by_name(tmp_path: Path, value: float) -> None:
    x = torch.ones(32, 64)
    x[3, 5] = value
    save_file({"a.weight": x, "b.weight": torch.ones(32, 64)}, tmp_path / "in.safetensors")
    for layout in ("fp4lab", "modelopt"):
        with pytest.raises(InputError, match=r"'a.weight' in .* holds NaN or infinity; repair it"):
            interop.quantize(
                tmp_path / "in.safetensors", tmp_path / "out", format=formats.NVFP4, layout=layout
            )
    assert {path.name for path in tmp_path.iterdir()} == {"in.safetensors"}
    interop.quantize(
        tmp_path / "in.safetensors",
        tmp_path / "out",
        format=formats.NVFP4,
        layout="modelopt",
        keep=["a"],
    )
    kept = interop.read(tmp_path / "out")["a.weight"]
    assert isinstance(kept, torch.Tensor)
    assert kept.numpy().tobytes() == x.numpy().tobytes()


def test_what_is_quantized_already_is_refused(tmp_path: Path) -> None:
    q = fp4lab.quantize(torch.ones(16, 32), formats.NVFP4)
    fp4lab.save({"a.weight": q}, tmp_path / "in.safetensors")
    with pytest.raises(InputError, match=r"is quantized already \(fp4lab\)"):
        interop.quantize(
            tmp_path / "in.safetensors", tmp_path / "out", format=formats.NVFP4, layout="modelopt"
        )


MEASURE = """
import re, sys, torch
from fp4lab import formats, interop
source, small, layout = sys.argv[1:4]
def run(path, out):
    if layout == "inspect":
        interop.inspect(path, [formats.NVFP4])
    else:
        interop.quantize(path, out, format=formats.get(sys.argv[4]), layout=layout)
def status(key):
    return int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
end = ".gguf" if layout == "gguf" else ""
run(small, small + "-out" + end)
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
run(source, source + "-out" + end)
print(status("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak of Linux")
@pytest.mark.parametrize(
    ("layout", "fmt"),
    [
        ("compressed-tensors", "nvfp4"),
        ("modelopt", "mxfp8_e4m3"),
        ("gguf", "nvfp4"),
        ("fp4lab", "nvfp4_16x16"),
        ("inspect", ""),
    ],
)
def test_the_peak_is_below_two_tensors_whatever_the_size_of_the_model(
    tmp_path: Path, layout: str, fmt: str
) -> None:
    tensors = {f"l.{at}.{word}_proj.weight": word for at in range(4) for word in ("q", "k", "o")}
    x = torch.randn(2048, 4096).to(torch.bfloat16)
    save_file({name: x.clone() for name in tensors}, tmp_path / "in.safetensors")
    save_file({"a.weight": x[:512].contiguous()}, tmp_path / "small.safetensors")
    words = [str(tmp_path / "in.safetensors"), str(tmp_path / "small.safetensors"), layout, fmt]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *words], capture_output=True, text=True, check=True
    )
    peak, tensor = int(done.stdout), x.numel() * 2
    assert tensor // 2 < peak < 2 * tensor, f"{peak / tensor:.2f} tensors"
    print(f"{layout} {fmt}: {peak / tensor:.2f} tensors")
