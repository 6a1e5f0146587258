"""The names of layers, which key their noise and which rules match."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fp4lab import recipes
from fp4lab.errors import InputError
from fp4lab.nn import Linear, convert, set_recipe, unconvert


def pair() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(32, 32),
        nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)),
    )


def noise_names(model: nn.Module) -> list[str]:
    return [m.layer_name for m in model.modules() if isinstance(m, Linear)]


def test_a_part_converted_before_gets_the_names_of_the_whole():
    """Two layers with one name would round alike, and rules would miss their layers."""
    model = pair()
    convert(model[1], recipes.get("nvfp4"))
    assert noise_names(model) == ["0", "1"]
    convert(model, recipes.get("nvfp4"))
    assert noise_names(model) == ["0", "1.0", "1.1"]
    separately = pair()
    convert(separately[0], recipes.get("nvfp4"))
    convert(separately[1], recipes.get("nvfp4"))
    convert(separately, recipes.get("nvfp4"))
    assert noise_names(separately) == ["0", "1.0", "1.1"]


def test_a_part_and_a_wrapper_keep_the_names_of_the_whole():
    model = pair()
    convert(model, recipes.get("nvfp4"))
    convert(model[1], recipes.get("mxfp4"))
    assert noise_names(model) == ["0", "1.0", "1.1"]
    wrapper = nn.ModuleDict({"module": model})
    assert set_recipe(wrapper, recipes.get("bf16")).names("updated") == ("0", "1.0", "1.1")
    assert noise_names(model) == ["0", "1.0", "1.1"]


def test_layers_made_by_hand_get_names_of_their_own():
    model = nn.Sequential(Linear(32, 32), Linear(32, 32))
    convert(model, recipes.get("nvfp4"))
    assert noise_names(model) == ["0", "1"]


def test_a_layer_parametrized_after_its_conversion_is_not_turned_back():
    model = pair()
    convert(model, recipes.get("nvfp4"))
    nn.utils.parametrizations.weight_norm(model[1][0])
    with pytest.raises(InputError, match=r"layer '1\.0' has become a ParametrizedLinear"):
        unconvert(model)
    assert noise_names(model) == ["0", "1.0", "1.1"]


def test_what_cannot_become_a_layer_is_told_and_nothing_else_suffers() -> None:
    class Slotted(nn.Linear):
        __slots__ = ("extra",)

    class Seeded(nn.Linear):
        def __init__(self) -> None:
            super().__init__(32, 32)
            self.seed = nn.Parameter(torch.zeros(1))

    model = nn.Sequential(nn.Linear(32, 32), Slotted(32, 32), Seeded())
    report = convert(model, recipes.get("nvfp4"))
    assert report.names("converted") == ("0",)
    reasons = [row.reason for row in report.rows[1:]]
    assert reasons == [
        "Slotted has __slots__ of its own",
        "it has attributes that a converted layer needs: seed; rename them",
    ]
    assert model(torch.randn(16, 32)).shape == (16, 32)


def test_a_subclass_of_the_layer_is_left_as_it_is() -> None:
    class Mine(Linear):
        pass

    model = nn.Sequential(Mine(32, 32), nn.Linear(32, 32))
    convert(model, recipes.get("nvfp4"))
    assert unconvert(model) == 1
    assert [type(layer) for layer in model] == [Mine, nn.Linear]


def test_set_recipe_of_one_layer_changes_nothing_else() -> None:
    model = pair()
    convert(model, recipes.get("nvfp4"))
    set_recipe(model[1][0], recipes.get("bf16"))
    assert noise_names(model) == ["0", "1.0", "1.1"]


def test_a_converted_model_in_a_list_is_reported() -> None:
    model = pair()
    convert(model, recipes.get("nvfp4"))
    report = convert(nn.ModuleList([model]), recipes.get("nvfp4"))
    assert "1.0" in str(report)


def test_set_recipe_keeps_every_layer_s_seed_and_padding() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 20))
    convert(model[0], recipes.get("nvfp4"), seed=3)
    convert(model[1], recipes.get("nvfp4"), seed=9, ragged="pad")
    set_recipe(model, recipes.get("mxfp4"))
    assert [(layer.seed, layer.ragged) for layer in model] == [(3, "error"), (9, "pad")]
