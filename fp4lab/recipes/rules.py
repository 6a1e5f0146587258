"""Which layer gets which numerics: ordered rules by name and by position in the block list.

The last rule that matches a layer wins, as in a list of exceptions to exceptions. Names are the
dotted module names of `torch.nn.Module.named_modules`; patterns are shell globs in which `*` also
crosses dots and case matters. Positions come from the caller, because only the model knows what its
blocks are.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from fp4lab import formats
from fp4lab.errors import InputError, expect, unknown
from fp4lab.recipes.operands import LinearRecipe

_ENDS = ("first", "last")


@dataclass(frozen=True)
class Layer:
    """A linear layer as rules see it: its name and, inside a block list, its block's position.

    Blocks count from 0. Outside of a block list `block` and `num_blocks` are None.

    >>> Blocks.first(1).match(Layer("blocks.0.mlp.up", block=0, num_blocks=4))
    True
    """

    name: str
    block: int | None = None
    num_blocks: int | None = None


@dataclass(frozen=True)
class Blocks:
    """The first or the last `count` blocks of a model; InputError unless `count` is at least 1.

    >>> Blocks.last(2).match(Layer("blocks.3.mlp.up", block=3, num_blocks=4))
    True
    """

    end: Literal["first", "last"]
    count: int

    def __post_init__(self) -> None:
        if self.end not in _ENDS:
            raise unknown("end", self.end, _ENDS)
        if type(self.count) is not int or self.count < 1:
            raise InputError(
                f"count={self.count!r} of Blocks should be an integer from 1; else drop the rule"
            )

    @classmethod
    def first(cls, count: int) -> Blocks:
        """The first `count` blocks."""
        return cls("first", count)

    @classmethod
    def last(cls, count: int) -> Blocks:
        """The last `count` blocks."""
        return cls("last", count)

    def match(self, layer: Layer) -> bool:
        """Whether the layer lies in one of these blocks; False for a layer outside any block.

        Raises:
            InputError: more blocks than the model has, which would leave nothing else.
        """
        if layer.block is None or layer.num_blocks is None:
            return False
        if self.count > layer.num_blocks:
            raise InputError(
                f"blocks={self} of a rule asks for more than the {layer.num_blocks} blocks around "
                f"layer {layer.name!r}; use a recipe that names fewer"
            )
        if self.end == "first":
            return layer.block < self.count
        return layer.block >= layer.num_blocks - self.count

    def __str__(self) -> str:
        return f"{self.end} {self.count}"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Layers that match get `use`.

    Args:
        pattern: glob over the dotted name, or several separated by "|".
        blocks: restricts the rule to these blocks; None does not restrict it.
        use: the layer's numerics; None leaves the layer alone (it is not replaced at all, and
            computes in its own precision).
        optional: whether the rule may match no layer of a model. Otherwise that is an error, for
            a rule that silently matches nothing is a typing mistake.

    Raises:
        InputError: a pattern with an empty part, or a field of another kind.

    >>> Rule(pattern="head|*.mlp.*", blocks=Blocks.last(1)).match(Layer("head"))
    False
    """

    pattern: str = "*"
    blocks: Blocks | None = None
    use: LinearRecipe | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        expect("pattern", self.pattern, str, "give a glob over names of layers, such as '*.mlp.*'")
        expect("blocks", self.blocks, Blocks, "use recipes.Blocks(..)", optional=True)
        expect("use", self.use, LinearRecipe, "use recipes.get(name).linear", optional=True)
        if not all(self.pattern.split("|")):
            raise InputError(
                f"pattern={self.pattern!r} of a rule has an empty part, which matches nothing; use "
                "'*' for every layer"
            )

    def match(self, layer: Layer) -> bool:
        """Whether the rule applies to the layer; InputError as `Blocks.match`."""
        if not any(fnmatchcase(layer.name, part) for part in self.pattern.split("|")):
            return False
        return self.blocks is None or self.blocks.match(layer)

    def __str__(self) -> str:
        return repr(self.pattern) if self.blocks is None else f"{self.pattern!r} in {self.blocks}"


#: output heads under their usual names
HEAD_IN_BF16 = Rule(
    pattern="head|*.head|*_head|output|embed_out|*.embed_out",
    use=LinearRecipe.uniform(formats.BF16),
    optional=True,
)


@dataclass(frozen=True)
class Resolved:
    """What a layer gets, and the rule that won (None: no rule matched, the recipe's default).

    `linear` is None for a layer that is left alone.

    >>> from fp4lab import recipes
    >>> recipes.get("nvfp4").resolve("blocks.0.mlp.up").reason
    "the recipe's default"
    """

    linear: LinearRecipe | None
    rule: Rule | None = None

    @property
    def reason(self) -> str:
        """Why, in words, for reports."""
        return "the recipe's default" if self.rule is None else f"rule {self.rule}"
