"""The Hadamard transform: definition, inverse, dtype, blocks, and the order of its sum."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fp4lab.errors import InputError
from fp4lab.formats import NVFP4_SIGNS, Hadamard
from fp4lab.kernels.hadamard.reference import hadamard, matrix

SIZES = [2**k for k in range(9)]


@pytest.mark.parametrize("size", SIZES)
def test_the_matrix_is_sylvester_s(size: int) -> None:
    assert np.array_equal(matrix(Hadamard(size)).numpy(), scipy.linalg.hadamard(size))


@pytest.mark.parametrize("size", SIZES)
def test_the_transform_is_the_matrix_product(size: int) -> None:
    """In float64, up to the rounding of `size` float32 additions."""
    transform = Hadamard(size, 5)
    x = torch.randn(7, 3 * size)
    exact = (x.double().view(7, 3, size) * torch.tensor(transform.vector)) @ torch.from_numpy(
        scipy.linalg.hadamard(size) / math.sqrt(size)
    )
    bound = size * 2.0**-24 * x.abs().double().view(7, 3, size).sum(-1, keepdim=True)
    assert ((hadamard(x, transform).view(7, 3, size) - exact).abs() <= bound).all()


@pytest.mark.slow
def test_a_transform_too_large_to_keep_its_matrix() -> None:
    """Of unit vectors, where it is exact: rows of the matrix."""
    size, transform = 8192, Hadamard(8192, 3)
    x = torch.zeros(3, size)
    chosen = torch.tensor([0, 4097, 8191])
    x[torch.arange(3), chosen] = math.sqrt(size)
    rows = torch.from_numpy(scipy.linalg.hadamard(size, dtype=np.int8)[chosen].astype(np.float32))
    expected = rows * torch.tensor(transform.vector)[chosen].unsqueeze(1)
    root = torch.tensor(math.sqrt(size)).float() * torch.tensor(size**-0.5).float()
    assert torch.equal(hadamard(x, transform), expected * root)


@pytest.mark.parametrize("size", SIZES)
def test_the_transform_without_signs_is_its_own_inverse(size: int) -> None:
    """Exact where all sums are: small integers, and a size whose root is a power of two."""
    x = torch.randint(-8, 9, (4, 2 * size)).float()
    back = hadamard(hadamard(x, Hadamard(size)), Hadamard(size))
    if int(math.log2(size)) % 2 == 0:
        assert torch.equal(back, x)
    else:
        assert torch.allclose(back, x, rtol=0, atol=size * 8 * 2.0**-22)


@pytest.mark.parametrize("size", [16, 64])
def test_signs_and_transform_undo_each_other_in_a_product(size: int) -> None:
    transform = Hadamard(size, 1)
    x, w = (torch.randint(-4, 5, (5, 2 * size)).float() for _ in range(2))
    product = hadamard(x, transform) @ hadamard(w, transform).t()
    assert torch.equal(product, x @ w.t())


def test_the_sum_runs_from_left_to_right_and_is_scaled_last() -> None:
    x = torch.randn(64, 16)
    total = torch.zeros(64, 16)
    transform = Hadamard(16, NVFP4_SIGNS)
    rows = matrix(transform)
    for k in range(16):
        total = total + x[:, k : k + 1] * rows[k]
    assert torch.equal(hadamard(x, transform), total * 0.25)


@settings(max_examples=30)
@given(
    st.sampled_from([2, 8, 32]),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    st.booleans(),
)
def test_blocks_along_rows_are_those_along_columns_of_the_transpose(
    size: int, dtype: torch.dtype, strided: bool
) -> None:
    x = torch.randn(2 * size, 6).to(dtype)
    x = torch.stack((x, x + 1), dim=2)[..., 0] if strided else x
    transform = Hadamard(size, 3)
    along_rows = hadamard(x, transform, dim=0)
    assert along_rows.dtype == dtype
    assert torch.equal(along_rows, hadamard(x.t().contiguous(), transform).t())
    in_float32 = hadamard(x.float(), transform, dim=0)
    assert torch.equal(along_rows, in_float32.to(dtype))


def test_a_first_use_on_the_meta_device_leaves_nothing_behind() -> None:
    """The matrix is kept, and must not be kept where the default device was."""
    transform = Hadamard(16, (-1,) + (1,) * 14 + (-1,))  # which no other test has
    with torch.device("meta"):
        assert hadamard(torch.empty(2, 16), transform).is_meta
    x, signs = torch.randn(1, 16), torch.tensor(transform.vector)
    assert torch.equal(hadamard(x, transform), hadamard(x * signs, Hadamard(16)))


def test_size_one_is_the_signs_alone() -> None:
    x = torch.randn(3, 4)
    assert torch.equal(hadamard(x, Hadamard(1)), x)
    assert torch.equal(hadamard(x, Hadamard(1, (-1,))), -x)


def test_an_extent_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match=r"extent 24 .* Hadamard size 16"):
        hadamard(torch.zeros(2, 24), Hadamard(16))


def test_drawn_signs_depend_on_the_seed_alone() -> None:
    first, again, other = Hadamard(512, 0).vector, Hadamard(512, 0).vector, Hadamard(512, 1).vector
    assert first == again
    assert first != other
    assert set(first) == {-1, 1}
    # 512 fair signs: the sum's deviation is sqrt(512); 5 of them
    assert abs(sum(first)) < 5 * math.sqrt(512)
    assert Hadamard(16, 0).vector == first[:16]
    # part of the definition of a run: the first two bytes of SHA-256 of "hadamard/0/0"
    assert first[:16] == (-1, -1, 1, 1, -1, 1, 1, -1, -1, -1, 1, 1, 1, 1, -1, -1)
