"""A linear layer whose three matrix products follow a recipe.

It is a `torch.nn.Linear` (same parameters, same state-dict keys) with its own backward. Master
weights are never changed, and nothing quantized outlives a step: weights are quantized anew in
every forward, so any write to them is seen. Stochastic rounding depends on the layer's `noise`
buffer alone (seed, name, step, microbatch), which the forward copies for its backward; activation
checkpointing therefore rounds the same way in its recompute.

Left out: a cache of quantized weights across microbatches, quantized storage of what is saved for
the backward, reduction of amax over processes, second and forward-mode derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from fp4lab.errors import InputError, unknown, whole
from fp4lab.functional import noise_state
from fp4lab.functional.arguments import RAGGED, check_float, is_transformed
from fp4lab.nn import gemms
from fp4lab.nn.gemms import How
from fp4lab.nn.steps import StepWatch
from fp4lab.recipes import LinearRecipe


class Linear(torch.nn.Linear):
    """`y = x W^T + b` with quantized products.

    Args:
        in_features: K.
        out_features: N.
        bias: whether there is a bias; it is added in high precision.
        recipe: what each operand becomes; `LinearRecipe()` leaves all as they are.
        layer_name: part of the key of the rounding noise; two layers should not share it.
        seed: the other part.
        ragged: "error", or "pad" to complete blocks (and Hadamard blocks) with zeros where a
            dimension does not fit.
        device: as in torch.nn.Linear.
        dtype: of the parameters.

    `forward` takes `[.., K]` and returns `[.., N]` in x's dtype (under autocast: autocast's, to
    which x and W are cast first, as torch.nn.Linear does). Gradients have the dtypes of x, W and
    b. Inside of `fp4lab.disabled` it is torch.nn.Linear's.

    What is quantized is the tensor of one call: where a format has a scale per tensor, splitting a
    batch into microbatches changes the scales and so, slightly, the accumulated gradients. Formats
    without one (and BF16) give those of the whole batch, where microbatches are whole blocks.

    Raises:
        InputError: in `forward` or `backward`: a last dimension other than K, or K, N or the number
            of tokens (wgrad's blocks run along them) not a multiple of the blocks, without "pad";
            a forward-mode derivative.

    >>> from fp4lab import recipes
    >>> layer = Linear(64, 32, recipe=recipes.get("nvfp4").linear)
    >>> layer(torch.randn(2, 16, 64)).shape
    torch.Size([2, 16, 32])
    """

    noise: Tensor
    #: what a converted layer has beside a `torch.nn.Linear`
    ADDED: ClassVar = (
        *("recipe", "layer_name", "seed", "ragged", "noise"),
        *("_position", "_watch", "_disabled"),
    )

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        recipe: LinearRecipe | None = None,
        layer_name: str = "linear",
        seed: int = 0,
        ragged: str = "error",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self._configure(recipe or LinearRecipe(), layer_name, seed, ragged)

    def _configure(self, recipe: LinearRecipe, layer_name: str, seed: int, ragged: str) -> None:
        if not isinstance(recipe, LinearRecipe):
            raise InputError(
                f"recipe={type(recipe).__name__} of layer {layer_name!r} is no LinearRecipe; give "
                "the .linear of a Recipe, or convert a model by fp4lab.convert(model, recipe)"
            )
        if ragged not in RAGGED:
            raise unknown("ragged", ragged, RAGGED)
        self.recipe = recipe
        self.layer_name = layer_name
        self.seed = seed
        self.ragged = ragged
        # step and microbatch, once they have been set
        self._position: tuple[int, int] | None = getattr(self, "_position", None)
        unset = self._position is None and recipe.is_stochastic
        self._watch: StepWatch | None = StepWatch() if unset else None
        # the `fp4lab.disabled` blocks around the layer
        self._disabled: int = getattr(self, "_disabled", 0)
        self.register_buffer("noise", self._fresh_noise(), persistent=False)

    def _unconfigure(self) -> None:
        for attribute in self.ADDED:
            delattr(self, attribute)

    def _fresh_noise(self) -> Tensor:
        step, microbatch = self._position or (0, 0)
        # also what is made in inference mode is set in training
        with torch.inference_mode(False):
            noise = noise_state(self.seed, self.layer_name, step=step, microbatch=microbatch)
            return noise.to(self.weight.device)

    def set_step(self, step: int, microbatch: int = 0) -> None:
        """Move the rounding noise on; part of the definition of a run (see `fp4lab.set_step`).

        Raises InputError for a step or microbatch that is not an integer in [0, 2^32).
        """
        step = whole("step", step, 0, 2**32 - 1)
        microbatch = whole("microbatch", microbatch, 0, 2**32 - 1)
        self._position = (step, microbatch)
        self._watch = None
        self.noise[2] = step
        self.noise[3] = microbatch

    def __getstate__(self) -> dict[str, Any]:
        # a copy made inside of `fp4lab.disabled` is none of the block's
        return {**self.__dict__, "_disabled": 0}

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        if self._watch is not None:
            self._watch.forget()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Linear:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # `to_empty` leaves buffers uninitialised; what this one holds is derived
        self.noise.copy_(self._fresh_noise())
        return self

    def forward(self, input: Tensor) -> Tensor:
        """`[.., K]` to `[.., N]`."""
        if self._disabled:
            return torch.nn.functional.linear(input, self.weight, self.bias)
        x, weight = input, self.weight
        check_float(x, f"input of layer {self.layer_name!r}")
        is_transformed(f"layer {self.layer_name!r}")
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise InputError(
                f"input of shape {tuple(x.shape)} to layer {self.layer_name!r}: its last dimension "
                f"must be in_features={self.in_features}"
            )
        if x.device != weight.device:
            raise InputError(
                f"input is on {x.device}, layer {self.layer_name!r} on {weight.device}; move one"
            )
        kind = x.device.type
        if kind != "meta" and torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            # float64 stays, as in torch's own layer
            x, weight = (t if t.dtype == torch.float64 else t.to(dtype) for t in (x, weight))
        x_MK = x.reshape(x.shape[:-1].numel(), self.in_features)
        how = (self.noise, self.ragged, self.layer_name)
        has_tangents = forward_ad._current_level >= 0
        function = _ForwardQuantizedLinear if has_tangents else _QuantizedLinear
        y: Tensor = function.apply(  # type: ignore[no-untyped-call]
            x_MK, weight, self.recipe, *how
        )
        if not torch.compiler.is_compiling() and self._watch is not None and self.training:
            self._watch.look(self.weight, y)
        # as torch's own layer: FSDP2 loses gradients where what it wraps returns a view
        y = torch.ops.aten._unsafe_view(y, [*x.shape[:-1], self.out_features])
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        """Shapes and, in one phrase, what fprop does."""
        products = f"{self.recipe.fprop.a} x {self.recipe.fprop.b}"
        return f"{super().extra_repr()}, fprop={products}"


class _QuantizedLinear(torch.autograd.Function):
    """The three products; saves x and W as they came, and a copy of the noise state."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x_MK: Tensor,
        w_NK: Tensor,
        recipe: LinearRecipe,
        noise: Tensor,
        ragged: str,
        layer: str,
    ) -> Tensor:
        return gemms.fprop(x_MK, w_NK, recipe, How(noise, ragged, layer), x_MK.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x_MK, w_NK, ctx.recipe, noise, ctx.ragged, ctx.layer = inputs
        ctx.save_for_backward(x_MK, w_NK, noise.clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_MN: Tensor) -> tuple[Tensor | None, ...]:
        x_MK, w_NK, noise = ctx.saved_tensors
        how = How(noise, ctx.ragged, ctx.layer)
        dx = dw = None
        needs_x, needs_w = ctx.needs_input_grad[:2]
        if needs_x and needs_w:
            dx, dw = gemms.backward(dy_MN, x_MK, w_NK, ctx.recipe, how)
        elif needs_x:
            dx = gemms.dgrad(dy_MN, w_NK, ctx.recipe, how, x_MK.dtype)
        elif needs_w:
            dw = gemms.wgrad(dy_MN, x_MK, ctx.recipe, how, w_NK.dtype)
        return dx, dw, None, None, None, None


class _ForwardQuantizedLinear(_QuantizedLinear):
    """The same where forward-mode derivatives may be asked for; their error says what to do."""

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Tensor:
        raise InputError(
            f"input of layer {ctx.layer!r} has a tangent, but recipes know no forward-mode "
            "derivatives; use torch.func.grad or vjp, or `with fp4lab.disabled(model):`"
        )
