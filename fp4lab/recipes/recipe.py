"""A recipe: which numerics every linear layer of a model has at every step of training.

    recipe = default for linear layers + ordered rules (last match wins) + precision schedule

It is data: frozen, comparable, hashable, written to TOML and JSON without loss. Nothing here knows
modules or tensors: `fp4lab.nn.convert` reads a recipe, the training loop asks `recipe.at(step)`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from fp4lab import formats
from fp4lab.errors import InputError, expect, unknown
from fp4lab.recipes import techniques, view
from fp4lab.recipes.operands import LinearRecipe
from fp4lab.recipes.rules import Blocks, Layer, Resolved, Rule
from fp4lab.specs import toml
from fp4lab.specs.plain import Plain

_PARTS = ("all", "forward", "backward")


@dataclass(frozen=True, kw_only=True)
class Switch:
    """From step `at` on (the first step is 0), `part` of the numerics is that of `to`.

    Args:
        at: a step, or "decay" for the first step of the learning rate's decay.
        part: everything, or only fprop, or only dgrad and wgrad. The part that stays keeps its
            numbers: where it reused fprop's copy of a tensor it then quantizes that tensor itself,
            which must give the same values (true of 16x16 blocks and scales per tensor).
        to: the recipe to take it from, without a schedule of its own.

    Raises:
        InputError: a negative step, an unknown part, or a recipe that has a schedule.

    >>> from fp4lab import recipes
    >>> healed = recipes.get("nvfp4").switch(recipes.get("bf16"), at=100, part="forward")
    >>> healed.at(99).name, healed.at(100).name
    ('nvfp4', 'nvfp4, forward bf16')
    """

    at: int | Literal["decay"]
    part: Literal["all", "forward", "backward"] = "all"
    to: Recipe

    def __post_init__(self) -> None:
        if self.part not in _PARTS:
            raise unknown("part", self.part, _PARTS)
        if self.at != "decay" and (type(self.at) is not int or self.at < 0):
            raise InputError(f"at={self.at!r} of a switch should be a step from 0, or 'decay'")
        expect("to", self.to, Recipe, "use recipes.get(name)")
        if self.to.schedule:
            raise InputError(
                f"to={self.to.name!r} of a switch has a schedule; list all switches in one recipe"
            )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The numerics of a model's linear layers.

    Args:
        name: for tables, files and messages; one line.
        linear: what a layer gets that no rule matches. None: every layer needs a rule.
        rules: exceptions by name and block position; the last match wins.
        schedule: switches of precision during training.
        fprop_from: takes fprop from this recipe, layer by layer, and the backward products from
            the fields above; what a switch of one part leaves in force.
        provenance: where the recipe was published, and what was chosen where the source is silent.

    Raises:
        InputError: a field of another kind, neither `linear` nor rules, or an `fprop_from` with a
            schedule or an `fprop_from` of its own.

    >>> from fp4lab import recipes
    >>> recipes.get("nvfp4").without("rht").keep_high_precision(last=2).name
    'nvfp4_last2-rht'
    """

    name: str
    linear: LinearRecipe | None = None
    rules: tuple[Rule, ...] = ()
    schedule: tuple[Switch, ...] = ()
    fprop_from: Recipe | None = None
    provenance: str = ""

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise InputError(f"name={self.name!r} of a recipe should be one printable line")
        cure = "use recipes.LinearRecipe.uniform(fmt), or .linear of another recipe"
        expect("linear", self.linear, LinearRecipe, cure, optional=True)
        expect("fprop_from", self.fprop_from, Recipe, "use recipes.get(name)", optional=True)
        for field, kind in (("rules", Rule), ("schedule", Switch)):
            expect(field, getattr(self, field), tuple, f"give a tuple of {kind.__name__}")
            for item in getattr(self, field):
                expect(field, item, kind, f"give a tuple of {kind.__name__}")
        if self.linear is None and not self.rules:
            raise InputError(f"recipe {self.name!r} says nothing; give linear or rules")
        if self.fprop_from is not None and (self.fprop_from.schedule or self.fprop_from.fprop_from):
            raise InputError(
                f"fprop_from={self.fprop_from.name!r} should be a recipe without a schedule and "
                "without an fprop_from of its own"
            )

    def __repr__(self) -> str:
        return f"Recipe({self.name!r}, hash={self.hash[:12]!r})"

    # Layers

    def resolve(
        self, name: str, block: int | None = None, num_blocks: int | None = None
    ) -> Resolved:
        """What the layer of this name, in this block of so many, gets, and by which rule.

        Raises:
            InputError: a layer that no rule matches, where `linear` is None.

        >>> from fp4lab import recipes
        >>> recipes.get("nvfp4_last2").resolve("blocks.3.mlp.up", block=3, num_blocks=4).reason
        "rule '*' in last 2"
        """
        layer = Layer(name, block, num_blocks)
        matching = [rule for rule in self.rules if rule.match(layer)]
        if not matching and self.linear is None:
            raise InputError(
                f"layer {name!r} matches no rule of recipe {self.name!r}; add one, such as "
                f"Rule(pattern={name!r}, use=None) to leave it alone"
            )
        own = Resolved(matching[-1].use, matching[-1]) if matching else Resolved(self.linear)
        if self.fprop_from is None:
            return own
        forward = self.fprop_from.resolve(name, block, num_blocks).linear
        if forward is None and own.linear is None:
            return own
        forward, backward = forward or LinearRecipe(), own.linear or LinearRecipe()
        return Resolved(forward.with_backward_of(backward), own.rule)

    def assign(self, layers: Iterable[Layer]) -> tuple[Resolved, ...]:
        """`resolve` for all linear layers of a model, in order.

        Raises:
            InputError: as `resolve`, and for a rule that matches none of them and is not optional.
        """
        layers = tuple(layers)
        resolved = tuple(self.resolve(la.name, la.block, la.num_blocks) for la in layers)
        for recipe in (self, self.fprop_from or self):
            for rule in recipe.rules:
                if not rule.optional and not any(rule.match(layer) for layer in layers):
                    cure = "correct its pattern"
                    if rule.blocks is not None and not any(la.num_blocks for la in layers):
                        cure = "hold the blocks in an nn.ModuleList, or name layers by a pattern"
                    raise InputError(
                        f"rule {rule} of recipe {recipe.name!r} matches none of the "
                        f"{len(layers)} linear layers; {cure}, or set optional=True"
                    )
        return resolved

    def keep_high_precision(
        self, *, first: int = 0, last: int = 0, use: LinearRecipe | None = None
    ) -> Recipe:
        """Keeps the layers of the first and last so many blocks in BF16, or in `use`.

        Raises:
            InputError: a negative number of blocks, or none at all.
        """
        if first < 0 or last < 0 or first + last == 0:
            raise InputError(f"first={first}, last={last}: keep one block at least")
        use = use or LinearRecipe.uniform(formats.BF16)
        ends = [Blocks.first(first)] if first else []
        ends += [Blocks.last(last)] if last else []
        rules = tuple(Rule(blocks=blocks, use=use) for blocks in ends)
        suffix = "".join(f"_{blocks.end}{blocks.count}" for blocks in ends)
        base = re.split(r"[-+]", self.name, maxsplit=1)[0]
        name = base + suffix + self.name[len(base) :]
        return replace(self, name=name, rules=self.rules + rules)

    # Techniques

    def without(self, technique: str, *, where: str | None = None) -> Recipe:
        """A copy without one technique, in one place or everywhere (see `recipes.techniques`).

        Layers that are in high precision stay as they are.

        Raises:
            InputError: an unknown technique or place, or one that this recipe does not use.
        """
        suffix = _suffix("-", technique, where)
        return self._changed(lambda x: techniques.remove(x, technique, where=where), suffix)

    def with_(self, technique: str, *, where: str | None = None) -> Recipe:
        """A copy with one technique more, where the NVFP4 paper uses it or in another place.

        Raises:
            InputError: an unknown technique or place, or one that this recipe uses there already.
        """
        suffix = _suffix("+", technique, where)
        return self._changed(lambda x: techniques.add(x, technique, where=where), suffix)

    def _changed(self, change: Callable[[LinearRecipe], LinearRecipe], suffix: str) -> Recipe:
        def changed(linear: LinearRecipe | None) -> LinearRecipe | None:
            return change(linear) if linear is not None and linear.is_quantized else linear

        rules = tuple(replace(rule, use=changed(rule.use)) for rule in self.rules)
        result = replace(self, linear=changed(self.linear), rules=rules)
        if result == self:
            removed = suffix[0] == "-"
            raise InputError(
                f"technique={suffix[1:]!r} changes nothing in recipe {self.name!r}: "
                + ("it is not used" if removed else "it is used already, or cannot be used there")
                + "; see print(recipe) for what is, and help(fp4lab.recipes.techniques)"
            )
        return replace(result, name=self.name + suffix)

    # Schedule

    def switch(
        self,
        to: Recipe,
        *,
        at: int | Literal["decay"],
        part: Literal["all", "forward", "backward"] = "all",
    ) -> Recipe:
        """A copy with one more switch of precision; arguments and errors as in `Switch`."""
        return replace(self, schedule=(*self.schedule, Switch(at=at, part=part, to=to)))

    def at(self, step: int, decay_start: int | None = None) -> Recipe:
        """The recipe in force at a step, without a schedule.

        Args:
            step: from 0.
            decay_start: the first step of the learning rate's decay, None where there is none.

        Raises:
            InputError: a switch at "decay" when `decay_start` is None.
        """
        current = replace(self, schedule=())
        due = []
        for switch in self.schedule:
            at = decay_start if switch.at == "decay" else switch.at
            if at is None:
                raise InputError(
                    f"recipe {self.name!r} switches at 'decay', but the learning rate of this run "
                    "never decays; give the step instead"
                )
            if at <= step:
                due.append((at, switch))
        for _, switch in sorted(due, key=lambda pair: pair[0]):
            current = _switched(current, switch)
        return current

    # Files and display

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of all that decides a number; names and provenance do not count."""
        from fp4lab.recipes import files

        return files.digest(self)

    def diff(self, other: Recipe) -> str:
        """The numeric fields that differ, a line each: path, this recipe's value, the other's.

        >>> from fp4lab import recipes
        >>> print(recipes.get("nvfp4").diff(recipes.get("nvfp4-sr.dgrad")))
        nvfp4 -> nvfp4-sr.dgrad
          linear.dgrad.a.rounding: stochastic8 -> nearest
        """
        return view.diff(self, other)

    def to_dict(self) -> dict[str, Plain]:
        """Plain data: the formats of fp4lab by name, others by their fields."""
        from fp4lab.recipes import files

        return files.to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Recipe:
        """Inverse of `to_dict`; an InputError names the path of the first value that is wrong."""
        from fp4lab.recipes import files

        return files.from_dict(data)

    def to_toml(self) -> str:
        """TOML that `from_toml` reads back to an equal recipe."""
        return toml.dumps(self.to_dict())

    @classmethod
    def from_toml(cls, text: str) -> Recipe:
        """Inverse of `to_toml`; InputError for text that is not TOML or not a recipe."""
        from fp4lab.recipes import files

        return files.from_toml(text)

    def to_json(self) -> str:
        """JSON that `from_json` reads back to an equal recipe."""
        return json.dumps(self.to_dict(), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """Inverse of `to_json`; InputError for text that is not JSON or not a recipe."""
        from fp4lab.recipes import files

        return files.from_json(text)

    def __str__(self) -> str:
        return view.text(self)

    def _repr_html_(self) -> str:
        return view.html(self)


def _switched(current: Recipe, switch: Switch) -> Recipe:
    to = switch.to
    if switch.part == "all":
        return to
    if switch.part == "forward":
        name = f"{current.name}, forward {to.name}"
        return replace(current, name=name, fprop_from=to.fprop_from or to)
    forward = current.fprop_from or current
    return replace(to, name=f"{current.name}, backward {to.name}", fprop_from=forward)


def _suffix(sign: str, technique: str, where: str | None) -> str:
    return sign + technique + (f".{where}" if where else "")
