"""matmul: a tolerance that holds for tf32 and split sums where they are allowed, and for nothing worse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

DTYPES = ["float64", "float32", "float16", "bfloat16"]
SIZES = {"size": 1, "m": 65, "n": 33, "k": 777}


def to_tf32(x: Tensor, *, truncate: bool = True) -> Tensor:
    """float32 with 10 bits of fraction."""
    bits = x.view(torch.int32)
    return ((bits if truncate else bits + 0x1000) & ~0x1FFF).view(torch.float32)


def test_reference_has_the_known_value(make):
    workload, _ = make("matmul", dtype="float64", size=2, m=2, n=2, k=2)
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    (y,) = workload.reference(a, a)
    assert y.value.tolist() == [[7, 10], [15, 22]]


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("k", [1, 16, 777, 8192])
def test_tf32_is_right_only_if_allowed(make, error, k, truncate):
    sizes = SIZES | {"k": k}
    for tf32 in (True, False):
        workload, (a, b) = make("matmul", dtype="float32", tf32=tf32, **sizes)
        product = to_tf32(a, truncate=truncate) @ to_tf32(b, truncate=truncate)
        assert (error(workload.reference(a, b), [product]) < 1) is tf32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tf32_changes_nothing_for_narrow_types(make, dtype):
    (plain, inputs), (tf32, _) = (make("matmul", dtype=dtype, tf32=allowed, **SIZES) for allowed in (False, True))
    assert plain.reference(*inputs)[0].tolerance == tf32.reference(*inputs)[0].tolerance


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [2, 64, 8192])
def test_leaving_out_one_term_is_wrong(make, error, dtype, k):
    workload, (a, b) = make("matmul", dtype=dtype, **(SIZES | {"k": k}))
    product = (a[:, 1:].double() @ b[1:].double()).to(a.dtype)
    assert error(workload.reference(a, b), [product]) > 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_two_part_sums_is_right_and_rounding_every_sum_is_not(make, error, dtype):
    workload, (a, b) = make("matmul", dtype=dtype, **(SIZES | {"k": 4096}))
    halves = zip(a.float().chunk(2, dim=1), b.float().chunk(2), strict=True)
    first, second = ((left @ right).to(a.dtype) for left, right in halves)
    assert error(workload.reference(a, b), [first + second]) < 1
    total = torch.zeros(65, 33, dtype=a.dtype)
    for k in range(4096):
        total += a[:, k, None] * b[k]
    assert error(workload.reference(a, b), [total]) > 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(1, 512, 4096), (8, 300, 1000), (37, 65, 131)])
def test_a_factor_that_all_elements_have_in_common_is_wrong(make, error, dtype, sizes):
    workload, (a, b) = make("matmul", dtype=dtype, **dict(zip(("m", "n", "k"), sizes, strict=True)))
    expected, y = workload.reference(a, b), a.double() @ b.double()
    assert error(expected, [y.to(a.dtype)]) < 0.5
    for factor in (1.01, 127 / 128):
        assert error(expected, [(y * factor).to(a.dtype)]) > 1


def hopper(a: Tensor, b: Tensor) -> Tensor:
    """A float8 product as Hopper's tensor cores sum it: 33 terms at a time, 13 bits below the first of the largest.

    float32 is exact here: a term has 8 bits, and a sum of 33 truncated terms at most 20.
    """

    def cut(x: Tensor, largest: Tensor) -> Tensor:
        unit = torch.ldexp(torch.ones(()), torch.frexp(largest.clamp_min(1e-30)).exponent - 14)
        return x.div_(unit).trunc_().mul_(unit)

    total = torch.zeros(len(a), b.shape[1])
    for left, right in zip(a.float().split(32, 1), b.float().split(32), strict=True):
        terms = torch.cat([left[:, :, None] * right, total[:, None]], 1)
        total = cut(terms, terms.abs().amax(1, keepdim=True)).sum(1)
        total = cut(total, total.abs())
    return total


@pytest.mark.parametrize(
    ("k", "left_out"), [(32, 1), (777, 1), (8192, 32)]
)  # of 8192 terms, one is below its roundings
def test_float8_is_right_as_tensor_cores_sum_it_and_wrong_with_terms_left_out(make, error, k, left_out):
    workload, (a, b) = make("matmul", dtype="float8_e4m3fn", **(SIZES | {"k": k}))
    assert a.dtype == b.dtype == torch.float8_e4m3fn
    assert b.stride() == (1, k)
    assert error(workload.reference(a, b), [hopper(a, b).bfloat16()]) < 0.7
    assert error(workload.reference(a, b), [(a.double()[:, left_out:] @ b.double()[left_out:]).bfloat16()]) > 1


def test_float8_of_fewer_bits_is_wrong(make, error):
    workload, (a, b) = make("matmul", dtype="float8_e4m3fn", **SIZES)
    coarse = (a.float() / 2).to(torch.float8_e5m2).double() * 2
    assert error(workload.reference(a, b), [(coarse @ b.double()).bfloat16()]) > 1


def test_float8_gives_bfloat16_and_other_types_themselves(make):
    assert {dtype: make("matmul", dtype=dtype, **SIZES)[0].output_dtype for dtype in DTYPES} == {x: x for x in DTYPES}
    assert make("matmul", dtype="float8_e4m3fn", **SIZES)[0].output_dtype == "bfloat16"


def test_bfloat16_products_are_wrong_in_float32(make, error):
    workload, (a, b) = make("matmul", dtype="float32", tf32=True, **SIZES)
    assert error(workload.reference(a, b), [a.bfloat16().float() @ b.bfloat16().float()]) > 1


@pytest.mark.parametrize("data", ["uniform", "zeros"])
def test_other_data_is_held_to_the_same(make, error, data):
    workload, (a, b) = make("matmul", dtype="float32", data=data, **SIZES)
    assert error(workload.reference(a, b), [a @ b]) < 1
    assert error(workload.reference(a, b), [a @ b + 1e-3]) > 1


def test_flops_and_bytes(make):
    workload, _ = make("matmul", dtype="float16", size=1, m=2, n=3, k=5)
    assert (workload.flops(), workload.bytes_min()) == (60, 2 * (10 + 15 + 6))
    workload, _ = make("matmul", dtype="float8_e4m3fn", size=1, m=2, n=3, k=5)
    assert (workload.flops(), workload.bytes_min()) == (60, 10 + 15 + 2 * 6)
