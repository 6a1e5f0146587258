"""Conversion in place: what is reached, what is kept, and what is named."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import nn

from fp4lab import formats, recipes
from fp4lab.errors import InputError
from fp4lab.nn import Linear, convert, disabled, set_recipe, set_step, unconvert
from fp4lab.recipes import LinearRecipe, Recipe, Rule

NVFP4 = recipes.get("nvfp4")
BF16 = LinearRecipe.uniform(formats.BF16)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up = nn.Linear(32, 64, bias=False)
        self.down = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class Model(nn.Module):
    def __init__(self, num_blocks: int = 3, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(48, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(num_blocks))
        self.head = nn.Linear(32, 48, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Scaled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


class FSDPModule:
    """Stands for torch's mixin of the same name, which fully_shard puts before a class."""


class FSDPLinear(FSDPModule, nn.Linear):
    pass


class Named(nn.Linear):
    """A subclass that only adds to torch.nn.Linear."""

    label = "mine"


TOKENS = torch.arange(64).reshape(4, 16) % 48
INNER = [f"blocks.{i}.{name}" for i in range(3) for name in ("up", "down")]


def test_every_layer_gets_what_the_recipe_says():
    model = Model()
    report = convert(model, recipes.get("nvfp4_last1"))
    assert report.names("converted") == (*INNER, "head")
    for i in range(3):
        expected = NVFP4.linear if i < 2 else BF16
        assert model.blocks[i].up.recipe == model.blocks[i].down.recipe == expected
    assert model.head.recipe == BF16
    rows = {row.name: row for row in report.rows}
    assert rows["blocks.0.up"].numerics == "nvfp4_last1"
    assert rows["blocks.0.up"].reason == "the recipe's default"
    assert "last 1" in rows["blocks.2.up"].reason
    assert rows["head"].numerics == "bf16 everywhere"
    assert rows["embedding"].action == "not quantized"
    assert model.blocks[1].up.layer_name == "blocks.1.up"


def test_a_converted_model_computes_other_numbers_and_trains():
    torch.manual_seed(0)
    model = Model()
    before = model(TOKENS)
    convert(model, NVFP4)
    after = model(TOKENS)
    assert after.shape == before.shape
    assert after.dtype == before.dtype
    assert not torch.equal(after, before)
    after.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_parameters_keys_and_the_optimizer_stay():
    torch.manual_seed(0)
    model = Model(tied=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parameters, keys = list(model.parameters()), list(model.state_dict())
    convert(model, NVFP4)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == keys
    assert model.head.weight is model.embedding.weight
    old = model.blocks[0].up.weight.detach().clone()
    model(TOKENS).square().mean().backward()
    optimizer.step()
    assert not torch.equal(model.blocks[0].up.weight, old)
    Model(tied=True).load_state_dict(model.state_dict())


def test_mode_dtype_device_attributes_and_references_stay():
    model = Model().to(torch.bfloat16).eval()
    layer = model.blocks[0].up
    layer.note = "kept"
    model.blocks[1].up.train()
    convert(model, NVFP4)
    assert model.blocks[0].up is layer
    assert layer.note == "kept"
    assert not layer.training
    assert model.blocks[1].up.training
    assert layer.weight.dtype == torch.bfloat16
    assert model(TOKENS).dtype == torch.bfloat16


def test_hooks_of_every_kind_stay_and_can_be_removed():
    model = Model(1)
    layer, calls = model.blocks[0].up, []
    handles = [
        layer.register_forward_pre_hook(lambda m, args: calls.append("pre")),
        layer.register_forward_hook(
            lambda m, args, kwargs, out: calls.append("post"), with_kwargs=True
        ),
        layer.register_full_backward_hook(lambda m, gi, go: calls.append("backward")),
        layer.register_state_dict_post_hook(lambda *_: calls.append("save")),
        layer.register_load_state_dict_pre_hook(lambda m, *_: calls.append(type(m).__name__)),
    ]
    convert(model, NVFP4)
    gc.collect()

    def use() -> None:
        calls.clear()
        model(TOKENS).sum().backward()
        model.load_state_dict(model.state_dict())

    use()
    assert calls == ["pre", "post", "backward", "save", "Linear"]
    for handle in handles:
        handle.remove()
    use()
    assert calls == []


def test_a_pruned_layer_keeps_its_mask():
    from torch.nn.utils import prune

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32, bias=False))
    prune.random_unstructured(model[0], "weight", amount=0.5)
    convert(model, recipes.get("bf16"))
    x = torch.randn(4, 32)
    expected = (
        x.bfloat16().float() @ (model[0].weight_orig * model[0].weight_mask).bfloat16().float().T
    )
    assert torch.equal(model(x), expected)


def test_a_module_used_twice_is_converted_once_and_a_list_still_refers_to_it():
    shared = nn.Linear(32, 32)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)})
    aside = [shared]
    report = convert(model, NVFP4)
    assert report.names("converted") == ("a",)
    assert model["a"] is model["b"][0] is aside[0]
    assert isinstance(shared, Linear)


def test_nothing_old_is_kept_alive():
    model = nn.Sequential(nn.Linear(32, 32))
    reference = weakref.ref(model[0].weight)
    convert(model, NVFP4)
    del model
    gc.collect()
    assert reference() is None


def test_tied_weights_are_named_on_both_sides():
    report = convert(Model(tied=True), replace(NVFP4, rules=()))
    rows = {row.name: row for row in report.rows}
    assert "shares its weight with embedding" in rows["head"].reason
    assert rows["head"].action == "converted"
    assert "shares its weight with head" in rows["embedding"].reason
    assert "lookup" in rows["embedding"].reason
    untied = {row.name: row for row in convert(Model(), NVFP4).rows}
    assert "shares" not in untied["head"].reason + untied["embedding"].reason


def test_names_are_joined_as_the_table_joins_them():
    blocks = nn.ModuleList(nn.ModuleDict({"a": nn.MultiheadAttention(32, 4)}) for _ in range(3))
    report = convert(nn.ModuleDict({"blocks": blocks, "out": nn.Linear(32, 32)}), NVFP4)
    assert report.names("unreachable") == tuple(f"blocks.{i}.a.out_proj" for i in range(3))
    assert report.names_joined("unreachable") == ("blocks.0-2.a.out_proj",)
    assert "blocks.0-2.a.out_proj" in str(report)
    assert report.names_joined("updated") == ()


def test_attention_never_calls_its_out_projection():
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(32, 4), "out": nn.Linear(32, 32)})
    report = convert(model, NVFP4)
    assert report.names("unreachable") == ("attention.out_proj",)
    assert report.names("not quantized") == ("attention",)
    assert report.names("converted") == ("out",)
    assert not isinstance(model["attention"].out_proj, Linear)
    calls = []
    model["attention"].out_proj.register_forward_hook(lambda *_: calls.append(1))
    x = torch.randn(3, 2, 32)
    model["attention"](x, x, x)
    assert calls == []


def test_the_fast_path_of_an_encoder_layer_is_named():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    x = torch.randn(2, 5, 32)
    with torch.no_grad():
        before = layer(x)
        report = convert(layer, recipes.get("mxfp4"), ragged="pad")
        assert report.names("converted") == ("linear1", "linear2")
        row = next(row for row in report.rows if row.kind == "TransformerEncoderLayer")
        assert "set_fastpath_enabled(False)" in row.reason
        # what the row says: the converted layers are not called
        assert torch.equal(layer(x), before)
    assert not torch.equal(layer(x), before)


@pytest.mark.parametrize(
    ("module", "word"),
    [
        (nn.Conv2d(3, 8, 3), "convolutions"),
        (nn.ConvTranspose1d(3, 8, 3), "convolutions"),
        (nn.LSTM(8, 8), "recurrent"),
        (nn.GRUCell(8, 8), "recurrent"),
        (nn.Embedding(8, 8), "lookup"),
        (nn.Bilinear(4, 4, 4), "its own weight"),
    ],
)
def test_other_owners_of_matrices_are_named(module, word):
    report = convert(nn.ModuleDict({"other": module, "linear": nn.Linear(32, 32)}), NVFP4)
    row = next(row for row in report.rows if row.name == "other")
    assert row.action == "not quantized"
    assert word in row.reason


def test_modules_without_matrices_are_not_listed():
    model = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.BatchNorm1d(32), nn.ReLU())
    assert [row.name for row in convert(model, NVFP4).rows] == ["0"]


def test_linear_layers_that_cannot_be_converted_are_named():
    parametrized = nn.utils.parametrizations.orthogonal(nn.Linear(16, 16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # lazy modules announce themselves
        lazy = nn.LazyLinear(16)
    model = nn.ModuleDict(
        {"scaled": Scaled(16, 16), "p": parametrized, "lazy": lazy, "named": Named(16, 16)}
    )
    report = convert(model, NVFP4)
    reasons = {row.name: row.reason for row in report.rows if row.action == "unreachable"}
    assert set(reasons) == {"scaled", "p", "lazy"}
    assert "Scaled has a forward of its own" in reasons["scaled"]
    assert "parametrization" in reasons["p"]
    assert "run one batch" in reasons["lazy"]
    row = next(row for row in report.rows if row.name == "named")
    assert (row.kind, row.action) == ("Named", "converted")
    assert type(model["named"]) is Linear


def test_a_model_that_is_one_linear_layer():
    model = nn.Linear(32, 32)
    report = convert(model, NVFP4)
    assert type(model) is Linear
    assert "(the model)" in str(report)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.ReLU()), "Sequential has no torch.nn.Linear"),
        (nn.MultiheadAttention(32, 4), "never calls the module"),
        (Scaled(16, 16), "forward of its own"),
        (FSDPLinear(16, 16), "before fully_shard"),
        ("model", "model='model' is not a Module"),
    ],
)
def test_nothing_to_convert_is_an_error(model, message):
    with pytest.raises(InputError, match=message):
        convert(model, NVFP4)


def test_a_recipe_by_its_name_or_file(tmp_path):
    (tmp_path / "mine.toml").write_text(NVFP4.to_toml(), encoding="utf-8")
    for name in ("nvfp4", str(tmp_path / "mine.toml")):
        model = Model()
        convert(model, name)
        assert model.head.recipe == NVFP4.resolve("head").linear
        set_recipe(model, "mxfp4_last1")
        assert model.blocks[0].up.recipe == recipes.get("mxfp4").linear
        assert model.blocks[2].up.recipe == BF16


@pytest.mark.parametrize("change", [convert, set_recipe])
@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("nvpf4", r"recipe='nvpf4' is not known; did you mean 'nvfp4'\?"),
        ("absent.toml", r"path='absent\.toml' of a recipe does not exist"),
        (NVFP4.linear, r"recipe=LinearRecipe.* is not a Recipe; use .*, or the name alone"),
        (None, "recipe=None is not a Recipe"),
    ],
)
def test_what_is_no_recipe(change, recipe, message):
    model = Model()
    convert(model, NVFP4)
    with pytest.raises(InputError, match=message):
        change(model, recipe)
    assert model.blocks[0].up.recipe == NVFP4.linear


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (recipes.get("nvfp4_last8"), "more than the 3 blocks"),
        (replace(NVFP4, rules=(Rule(pattern="typo", use=None),)), "rule 'typo'"),
        (Recipe(name="strict", rules=(Rule(pattern="blocks.*", use=BF16),)), "layer 'head'"),
    ],
)
def test_nothing_changes_on_an_error(recipe, message):
    model = Model()
    with pytest.raises(InputError, match=message):
        convert(model, recipe)
    assert not any(isinstance(module, Linear) for module in model.modules())


@pytest.mark.parametrize(("in_features", "out_features"), [(40, 32), (32, 40)])
def test_features_that_do_not_fit_the_blocks_are_named(in_features, out_features):
    model = nn.ModuleDict({"good": nn.Linear(32, 32), "bad": nn.Linear(in_features, out_features)})
    with pytest.raises(InputError, match=r"layer 'bad'.*40 (in|out)put features.*ragged='pad'"):
        convert(model, NVFP4)
    assert not isinstance(model["good"], Linear)
    convert(model, NVFP4, ragged="pad")
    model["bad"](torch.randn(16, in_features)).sum().backward()
    assert model["bad"].weight.grad.isfinite().all()


def test_rules_may_leave_layers_alone():
    rule = Rule(pattern="*.down", use=None)
    model = Model()
    report = convert(model, replace(NVFP4, rules=(rule,)))
    assert report.names("left alone") == tuple(f"blocks.{i}.down" for i in range(3))
    assert type(model.blocks[0].down) is nn.Linear


def test_converting_again_updates_recipe_seed_and_keeps_the_step():
    model = Model()
    convert(model, NVFP4, seed=1)
    set_step(model, 7, microbatch=2)
    old = model.blocks[0].up.noise.clone()
    report = convert(model, recipes.get("mxfp4"), seed=2)
    assert report.names("updated") == (*INNER, "head")
    assert model.blocks[0].up.recipe == recipes.get("mxfp4").linear
    assert model.blocks[0].up.noise[2:].tolist() == [7, 2]
    assert not torch.equal(model.blocks[0].up.noise[:2], old[:2])


def test_set_recipe_keeps_seed_step_and_state():
    model = Model()
    convert(model, NVFP4, seed=5)
    set_step(model, 3)
    noise = [layer.noise.clone() for layer in model.modules() if isinstance(layer, Linear)]
    parameters = list(model.parameters())
    set_recipe(model, NVFP4.switch(recipes.get("bf16"), at=3, part="forward").at(3))
    layers = [layer for layer in model.modules() if isinstance(layer, Linear)]
    assert all(torch.equal(a.noise, b) for a, b in zip(layers, noise, strict=True))
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert model.blocks[0].up.recipe.fprop == BF16.fprop
    with pytest.raises(InputError, match="no converted layer"):
        set_recipe(Model(), NVFP4)


def test_a_new_recipe_may_leave_alone_and_convert():
    alone = replace(NVFP4, name="alone", rules=(Rule(pattern="*.up", use=None),))
    model = Model()
    convert(model, alone)
    assert type(model.blocks[0].up) is nn.Linear
    assert set(set_recipe(model, NVFP4).names("converted")) == {f"blocks.{i}.up" for i in range(3)}
    assert set_recipe(model, alone).names("left alone") == tuple(f"blocks.{i}.up" for i in range(3))
    x = torch.randn(16, 32)
    assert torch.equal(model.blocks[0].up(x), nn.functional.linear(x, model.blocks[0].up.weight))


def test_unconvert_gives_the_old_layers_back():
    torch.manual_seed(0)
    model = Model()
    before, attributes = model(TOKENS), set(vars(model.head))
    convert(model, NVFP4)
    assert unconvert(model) == 7
    assert set(vars(model.head)) == attributes
    assert type(model.head) is nn.Linear
    assert torch.equal(model(TOKENS), before)


def test_set_step_reaches_every_layer():
    model = Model()
    with pytest.raises(
        InputError, match=r"no converted layer; call fp4lab.convert\(model, recipe\)"
    ):
        set_step(model, 1)
    convert(model, NVFP4)
    assert set_step(model, 11, 3) == 7
    noise = torch.stack([m.noise for m in model.modules() if isinstance(m, Linear)])
    assert (noise[:, 2] == 11).all()
    assert (noise[:, 3] == 3).all()
    assert len({tuple(row) for row in noise[:, :2].tolist()}) == 7


@pytest.mark.parametrize("step", [-1, 2**32, 1.0, "1"])
def test_steps_are_checked(step):
    model = Model()
    convert(model, NVFP4)
    for face in (partial(set_step, model), Linear(32, 32).set_step):
        with pytest.raises(InputError, match="step="):
            face(step)
        with pytest.raises(InputError, match="microbatch="):
            face(0, step)
    assert not any(m.noise[2:].any() for m in model.modules() if isinstance(m, Linear))


def test_noise_follows_seed_name_and_step_and_nothing_else():
    def gradient(seed: int, step: int) -> torch.Tensor:
        torch.manual_seed(0)
        model = Model(1)
        convert(model, NVFP4, seed=seed)
        set_step(model, step)
        torch.manual_seed(seed + step + 1)  # must not matter
        model(TOKENS).square().mean().backward()
        return model.blocks[0].up.weight.grad

    assert torch.equal(gradient(0, 0), gradient(0, 0))
    assert not torch.equal(gradient(0, 0), gradient(1, 0))
    assert not torch.equal(gradient(0, 0), gradient(0, 1))


def test_on_the_meta_device_and_after_it():
    with torch.device("meta"):
        model = Model()
    convert(model, NVFP4, seed=3)
    assert model.blocks[0].up.noise.is_meta
    real = Model()
    convert(real, NVFP4, seed=3)
    model.to_empty(device="cpu")
    model.load_state_dict(real.state_dict())
    set_step(model, 4)
    set_step(real, 4)
    assert torch.equal(model.blocks[0].up.noise, real.blocks[0].up.noise)
    assert torch.equal(model(TOKENS), real(TOKENS))


def test_a_copy_is_independent():
    model = Model()
    convert(model, NVFP4)
    twin = copy.deepcopy(model)
    set_step(twin, 9)
    assert model.head.noise[2] == 0
    assert twin.head.recipe == model.head.recipe
    assert torch.equal(twin(TOKENS), model(TOKENS))


def test_weights_go_through_files_to_the_unconverted_model_and_back(tmp_path):
    torch.manual_seed(0)
    model, plain = Model(tied=True), Model(tied=True)
    convert(model, "nvfp4")
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    plain.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True), strict=True)
    with disabled(model):
        assert torch.equal(plain(TOKENS), model(TOKENS))
    for parameter in plain.parameters():
        nn.init.normal_(parameter)
    save_model(plain, str(tmp_path / "weights.safetensors"))
    assert load_model(model, str(tmp_path / "weights.safetensors"), strict=True) == (set(), [])
    convert(plain, "nvfp4")
    assert torch.equal(model(TOKENS), plain(TOKENS))
    assert model.head.weight is model.embedding.weight
    # weights that take the place of others
    model.load_state_dict(Model(tied=True).state_dict(), strict=True, assign=True)
    model(TOKENS).sum().backward()


def test_a_pickled_model_is_the_same():
    model = Model()
    convert(model, "nvfp4_last1", seed=3, ragged="pad")
    set_step(model, 5, 1)
    twin = pickle.loads(pickle.dumps(model))
    for ours, theirs in zip(model.modules(), twin.modules(), strict=True):
        if isinstance(ours, Linear):
            for name in ("recipe", "layer_name", "seed", "ragged"):
                assert getattr(ours, name) == getattr(theirs, name)
            assert torch.equal(ours.noise, theirs.noise)
    for each in (model, twin):
        each(TOKENS).square().sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_block_positions_are_those_of_the_outermost_list():
    class Expert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    model = nn.Module()
    model.stem = nn.Linear(16, 16)
    model.layers = nn.ModuleList(nn.Sequential(Expert()) for _ in range(2))
    report = convert(model, recipes.get("nvfp4_first1"))
    assert {row.name: row.block for row in report.rows} == {
        "stem": None,
        **{f"layers.{i}.0.experts.{j}": i for i in range(2) for j in range(4)},
    }
    assert model.layers[0][0].experts[3].recipe == BF16
    assert model.layers[1][0].experts[0].recipe == NVFP4.linear
    assert model.stem.recipe == NVFP4.linear


def test_names_inside_wrappers_are_those_of_the_model():
    model = torch.compile(Model(), backend="eager")
    report = convert(model, recipes.get("nvfp4_last1"))
    assert report.names("converted") == (*INNER, "head")
    assert model.blocks[0].up.layer_name == "blocks.0.up"
    assert set(set_recipe(model, recipes.get("bf16")).names("updated")) == {*INNER, "head"}


def test_the_report_joins_blocks_that_fare_alike():
    lines = str(convert(Model(5), recipes.get("nvfp4_first1_last1"))).splitlines()
    assert lines[0] == "recipe nvfp4_first1_last1: 1 not quantized, 11 converted"
    names = [line.split()[0] for line in lines[3:]]
    assert names == [
        "embedding",
        "blocks.0.up",
        "blocks.0.down",
        "blocks.1-3.up",
        "blocks.1-3.down",
        "blocks.4.up",
        "blocks.4.down",
        "head",
    ]


def test_the_report_as_html():
    report = convert(Model(), NVFP4)
    html = report._repr_html_()
    assert html.count("<tr>") == 1 + 4
    assert "<td>blocks.0-2.up</td>" in html
    with pytest.raises(AttributeError):
        report.recipe = "other"


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "fp8_block"])
def test_padding_reaches_the_backward_of_every_recipe(name: str) -> None:
    """A last batch of 17 tokens, and features that fit no block."""
    model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.Linear(40, 24))
    convert(model, recipes.get(name), ragged="pad")
    model(torch.randn(17, 24)).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_report_says_where_dgrad_has_another_weight() -> None:
    """Edge case B53."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    report = convert(model, recipes.get("nvfp4_base"))
    assert report.summary.endswith(
        "2 converted; in 2 dgrad rounds W anew, along another axis than fprop"
    )
    assert "anew" not in convert(model, recipes.get("nvfp4")).summary


def test_a_complex_weight_is_not_converted():
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32, dtype=torch.cfloat))
    report = convert(model, recipes.get("nvfp4"))
    assert report.names("converted") == ("0",)
    assert report.names("unreachable") == ("1",)
