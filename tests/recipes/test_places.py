"""The six places, which are part of the definition of a run."""

from fp4lab.recipes.places import GEMMS, PLACES, TENSORS


def test_the_table():
    """Other streams would be other noise, and two operands with one would round alike."""
    table = [(p.gemm, p.side, p.tensor, p.dim, p.stream, p.label) for p in PLACES]
    assert table == [
        ("fprop", "a", "x", 1, 0, "X"),
        ("fprop", "b", "w", 1, 1, "W"),
        ("dgrad", "a", "dy", 1, 2, "dY"),
        ("dgrad", "b", "w", 0, 3, "W^T"),
        ("wgrad", "a", "dy", 0, 4, "dY^T"),
        ("wgrad", "b", "x", 0, 5, "X^T"),
    ]
    assert [str(p.forward) for p in PLACES if p.forward] == ["fprop.b", "fprop.a"]


def test_both_sides_of_a_product_contract_the_same_axis():
    extents = {"x": ("M", "K"), "w": ("N", "K"), "dy": ("M", "N")}
    assert set(extents) == set(TENSORS)
    for gemm in GEMMS:
        a, b = (place for place in PLACES if place.gemm == gemm)
        assert extents[a.tensor][a.dim] == extents[b.tensor][b.dim]
