"""The automatic tolerance: right results pass in any order of sums, and wrong ones do not."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from runner.kernels.unsupported import Unsupported
from runner.subject import tolerance
from runner.subject.gradients import WithGradients
from runner.subject.tolerance import Judge

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NARROW = DTYPES[1:]


def rms_norm(x: Tensor, w: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def matmul(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def thirds(x: Tensor) -> Tensor:
    return x / 3 - 1


def roots(x: Tensor) -> Tensor:
    return 2 / (x.abs() + 1).sqrt() - 1


def inputs_of(function: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
    shapes = {rms_norm: ((64, 96), (96,)), matmul: ((48, 200), (200, 40)), softmax: ((64, 100),)}[function]
    return tuple(torch.randn(shape).to(dtype) for shape in shapes)


def to_tf32(x: Tensor) -> Tensor:
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def in_a_loop(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total += a[:, k, None].float() * b[k].float()
    return total.to(a.dtype)


def in_parts(a: Tensor, b: Tensor) -> Tensor:
    pairs = zip(a.float().chunk(4, 1), b.float().chunk(4), strict=True)
    return torch.stack([(left @ right).to(a.dtype).float() for left, right in pairs]).sum(0).to(a.dtype)


# --- right and wrong results ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [rms_norm, matmul, softmax])
def test_a_result_is_right_however_it_is_rounded(function, dtype):
    args = inputs_of(function, dtype)
    judge = Judge(function, args)
    assert not judge.refused
    for to in (dtype, torch.float32, torch.float64):
        result = judge.check(function(*(arg.to(to) for arg in args)).to(dtype))
        assert result.correct, (to, result.reason)
        assert result.err_over_tol < 1
        assert result.tolerance == ["automatic (8 draws)"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("other", [in_a_loop, in_parts])
def test_sums_may_be_added_in_any_order(other, dtype):
    args = inputs_of(matmul, dtype)
    assert Judge(matmul, args).check(other(*args)).correct


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [rms_norm, matmul, softmax])
def test_wrong_results_are_found(function, dtype):
    args = inputs_of(function, dtype)
    judge, y = Judge(function, args), function(*args)
    wrong = {
        "zeros": torch.zeros_like(y),
        "mean": y.mean().expand(y.shape).contiguous(),
        "other": function(*inputs_of(function, dtype)),
        "all 1 %": y * 1.01,
        "NaN": y.where(torch.arange(y.shape[1]) != 3, torch.nan),
        "infinite": y.where(torch.arange(y.shape[1]) != 3, torch.inf),
    }
    if dtype == torch.float32:
        row = y.clone()
        row[7] *= 1.01
        wrong |= {"a row 1 %": row, "rounded": y.bfloat16().float()}
        wrong |= {"in bfloat16": function(*(arg.bfloat16().float() for arg in args))}
    for name, output in wrong.items():
        result = judge.check(output)
        assert not result.correct, name
        assert (result.err_over_tol == torch.inf) if name in ("NaN", "infinite") else (result.err_over_tol > 1), name
        assert result.reason.startswith("the output: "), name


def test_a_missing_eps_is_found():
    x, w = 1e-3 * torch.randn(64, 96), torch.ones(96)
    assert not Judge(rms_norm, (x, w)).check(rms_norm(x, w, 0.0)).correct


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.interpolate(x[None, None], scale_factor=2),  # torch computes its indices in floating point
        lambda x: F.interpolate(x[None, None], size=(30, 40), mode="nearest-exact"),
        lambda x: x[torch.linspace(0, 30, 11).long()],
        lambda x: x[(torch.arange(60.0) * 0.5).floor().long()],
        lambda x: x[((x[:, 0] > 0).float().cumsum(0) - 1).clamp(0).long()],  # as positions of tokens that are kept
        lambda x: x * (torch.arange(32) * 0.25 >= 2),
    ],
    ids=["nearest", "nearest-exact", "linspace", "arange", "cumsum", "comparison"],
)
def test_indices_from_whole_numbers_are_not_rounded(function):
    x = torch.randn(32, 32)
    judge = Judge(function, [x])
    assert judge.check(function(x)).correct
    wrong = function(x).clone()
    wrong[..., -1, -1] += 1e-5
    assert not judge.check(wrong).correct
    assert not judge.note


@pytest.mark.parametrize("dtype", DTYPES)
def test_terms_that_are_left_out_are_found(dtype):
    a, b = inputs_of(matmul, dtype)
    assert not Judge(matmul, (a, b)).check(a[:, :-2] @ b[:-2]).correct


def test_tf32_is_right_only_if_allowed_and_named_if_not(monkeypatch):
    a, b = inputs_of(matmul, torch.float32)
    product = to_tf32(a) @ to_tf32(b)
    assert Judge(matmul, (a, b), tf32=True).check(product).correct
    judge = Judge(matmul, (a, b))
    result = judge.check(product)
    assert not result.correct
    assert "TF32" not in result.reason  # a CPU has none
    monkeypatch.setattr(tolerance, "HAVE_TF32", {"cpu"})
    assert "only TF32 explains it" in judge.check(product).reason
    assert "TF32" not in judge.check(product * 1.01).reason


@pytest.mark.parametrize(("shape", "place"), [((), "()"), ((5,), "(3,)"), ((4, 5), "(2, 3)")])
@pytest.mark.parametrize(("error", "part"), [(1.0, "real"), (1.0j, "imaginary")])
@pytest.mark.parametrize("given", [{}, {"atol": 1e-3}])
def test_the_wrong_part_of_a_complex_number_is_named(shape, place, error, part, given):
    x = torch.randn(shape, dtype=torch.complex64)
    y = x.exp()
    y.view(-1)[{0: 0, 1: 3, 2: 13}[len(shape)]] += error
    reason = Judge(torch.exp, (x,), **given).check(y).reason
    count = f"1 of {2 * x.numel()} real and imaginary parts wrong"
    assert reason.startswith(f"the output: {count}, worst the {part} part at {place}: got ")


def test_the_wrong_parts_of_complex_numbers_are_named():
    torch.manual_seed(0)
    a, b = torch.randn(8, 16384, dtype=torch.complex64), torch.randn(16384, 8, dtype=torch.complex64)
    judge, y = Judge(torch.mm, (a, b)), a @ b
    for place, factor, said in [
        ((), 9, "128 of 128 real and imaginary parts wrong, worst the "),
        ((..., 2, slice(2)), 9, "16 of 128 real and imaginary parts wrong, all in [:, 2], worst the "),
        (
            (3, ..., 1),
            9,
            "8 of 128 real and imaginary parts wrong, all imaginary, in [3, :], worst the imaginary part at (3, ",
        ),
        ((..., 0), 9, "64 of 128 real and imaginary parts wrong, all real, worst the real part at ("),
        ((..., 1), 1.00001, "the imaginary part is 1.00001 times the reference, "),
        ((3, 1), 1.00004, "element 25 is 1.00004 times the reference, "),
    ]:
        wrong = torch.view_as_real(y.clone())
        wrong[place] *= factor
        assert judge.check(torch.view_as_complex(wrong)).reason.startswith(f"the output: {said}")


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a.conj() @ b,
        lambda a, b: torch.einsum("ij,kj->ik", a, b.mT.conj()),
        lambda a, b: torch.bmm(a[None], b[None].conj())[0],
        lambda a, b: torch.addmm(a[:, :1], a, b, beta=0.5),
        lambda a, b: a.mH.mT @ b[:, 0],
    ],
)
def test_products_of_complex_numbers(function, tf32, monkeypatch):
    monkeypatch.setattr(tolerance, "HAVE_TF32", {"cpu"})
    torch.manual_seed(0)
    args = torch.randn(8, 16, dtype=torch.complex64), torch.randn(16, 30, dtype=torch.complex64)
    judge = Judge(function, args, tf32=tf32)
    assert judge.check(function(*args).resolve_conj()).reason == ""
    for wrong in (function(args[0].conj(), args[1]), function(*args) * (1 + 0.05j), function(*args) * 1.05):
        assert "real and imaginary parts wrong" in judge.check(wrong.resolve_conj()).reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_back_to_the_type_of_the_input_rounds(dtype):
    def normed(x, w):
        given = x.dtype
        x = x.to(torch.float32)
        return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))).to(given)

    def product(x, w, v):
        return torch.relu(normed(x, w) @ v) @ v

    x, w, v = torch.randn(64, 96).to(dtype), torch.rand(96).to(dtype), torch.randn(96, 96).div(10).to(dtype)
    judge = Judge(product, (x, w, v))
    y = torch.relu(normed(x, w).float() @ v.float()) @ v.float()  # as a kernel that accumulates and keeps float32
    result = judge.check(y.to(dtype))
    assert result.correct, result.reason
    assert result.err_over_tol < 0.5
    assert not judge.check(product(x, w * 1.02, v)).correct


def test_a_factor_widens_all_limits():
    args = inputs_of(rms_norm, torch.float32)
    y = rms_norm(*args)
    strict, wide = (Judge(rms_norm, args, factor=factor) for factor in (1.0, 1e6))
    assert not strict.check(y * 1.01).correct
    result = wide.check(y * 1.01)
    assert result.correct
    assert strict.check(y * 1.01).err_over_tol == pytest.approx(1e6 * result.err_over_tol, rel=1e-3)
    assert result.tolerance == ["automatic (8 draws), 1e+06 times as wide"]


def test_the_reason_names_the_block_of_all_wrong_elements():
    x = torch.randn(40, 30)
    judge = Judge(lambda x: (x.softmax(-1), x.argsort(-1)), (x,))
    y, order = x.softmax(-1), x.argsort(-1)
    y[:, 16:], order[39] = -1, 30
    assert judge.check((y, x.argsort(-1))).reason.startswith(
        "[0]: 560 of 1200 elements wrong, all in [:, 16:30], worst"
    )
    wrong = "[1]: 30 of 1200 elements wrong, all in [39, :], the first at (39, 0): got 30, want "
    assert judge.check((x.softmax(-1), order)).reason.startswith(wrong)


@pytest.mark.parametrize("given", [{}, {"atol": 0.1}])
def test_a_complex_number_of_python_is_compared(given):
    x = torch.randn(8)
    judge = Judge(lambda x: (x.exp(), complex(x.sum(), 1.0)), (x,), **given)
    assert judge.check((x.exp(), complex(x.sum(), 1.0))).reason == ""
    wrong = "[1]: 1 of 2 real and imaginary parts wrong, worst the imaginary part at (): got 5, want 1"
    assert judge.check((x.exp(), complex(x.sum(), 5.0))).reason == wrong
    assert judge.check((x.exp(), 1.0)).reason == "[1]: a float where a complex is expected"


def test_given_tolerances_hold_for_numbers_of_python():
    x = torch.randn(8)
    judge = Judge(lambda x: (x.exp(), float(x.sum())), (x,), atol=0.1)
    assert judge.check((x.exp(), float(x.sum()) + 0.01)).correct
    assert judge.check((x.exp(), float(x.sum()) + 1)).reason.startswith("[1]: 1 of 1 elements wrong")


def test_given_tolerances_replace_the_rule():
    x = torch.randn(50)
    judge = Judge(torch.exp, (x,), atol=0.1)
    assert judge.check(x.exp() + 0.09).correct
    assert not judge.check(x.exp() + 0.11).correct
    assert judge.check(x.exp()).tolerance == ["0.1 + 0 |r| (as given)"]


def test_quick_draws_half_as_often():
    args = inputs_of(softmax, torch.float32)
    judge = Judge(softmax, args, quick=True)
    assert judge.draws == 4
    assert judge.check(softmax(*args)).correct
    assert not judge.check(softmax(*args) * 1.01).correct


def test_a_judge_gives_the_same_figures_again():
    args = inputs_of(softmax, torch.bfloat16)
    first, second = (Judge(softmax, args).check(softmax(*args)).err_over_tol for _ in range(2))
    assert first == second > 0


def test_float64_is_judged_as_float64():
    args = tuple(arg.double() for arg in inputs_of(matmul, torch.float32))
    judge = Judge(matmul, args)
    assert judge.check(matmul(*args)).correct
    assert not judge.check(matmul(*(arg.float() for arg in args)).double()).correct


def test_a_reference_that_casts_inside_stays_exact():
    def cast(x: Tensor) -> Tensor:
        return x.float().softmax(-1).to(x.dtype)

    x = torch.randn(32, 64, dtype=torch.float64)
    judge = Judge(cast, (x.float(),))
    assert judge.check(x.float().softmax(-1)).err_over_tol < 0.5
    exact = next(iter(judge._exact.values()))
    assert torch.equal(exact, x.float().double().softmax(-1))


# --- kinds of values ---


def test_one_pass_over_data_with_nan_and_infinities():
    x = torch.randn(20, 30)
    x[3, 4], x[5, 6], x[7, 8] = torch.nan, torch.inf, -torch.inf
    judge = Judge(torch.relu, (x,))
    assert judge.check(x.relu()).correct
    assert not judge.check(x.relu().nan_to_num(0.0)).correct
    assert not judge.check(x.abs()).correct


def test_an_overflow_of_float16_is_right_as_an_infinity():
    x = 300 * torch.randn(30, 30).half()
    judge = Judge(torch.square, (x,))
    y = x.square()
    assert y.isinf().any()
    assert judge.check(y).correct
    assert not judge.check(-y).correct


def test_ties_go_either_way_and_wrong_indices_do_not():
    x = torch.randn(40, 50)
    x[::2, 7] = x[::2, 9] = 9.0
    judge = Judge(lambda x: x.argmax(-1), (x,))
    assert judge.check(x.argmax(-1)).correct
    assert not judge.check(x.argmax(-1) + 5).correct
    assert not judge.check(x.argmin(-1)).correct


def first_of_equals(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sort(dim=-1, stable=True)


def last_of_equals(x: Tensor) -> tuple[Tensor, Tensor]:
    values, places = x.flip(-1).sort(dim=-1, stable=True)
    return values, x.shape[-1] - 1 - places


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
@pytest.mark.parametrize("make", [torch.bfloat16, torch.float16, "whole", "zeros"])
@pytest.mark.parametrize("quick", [False, True])
def test_each_pair_of_equal_keys_may_be_in_either_order(make, seed, quick):
    torch.manual_seed(seed)
    keys, values = torch.randn(8, 100), torch.randn(8, 100)
    keys = (
        keys.to(make) if isinstance(make, torch.dtype) else keys.clamp(min=0) if make == "zeros" else (9 * keys).round()
    )

    def reference(keys: Tensor, values: Tensor, order: Any = torch.sort) -> tuple[Tensor, Tensor, Tensor]:
        ranked, places = order(keys)
        return ranked, places, values.gather(-1, places)

    judge = Judge(reference, (keys, values), quick=quick)
    for order in (first_of_equals, last_of_equals):
        result = judge.check(reference(keys, values, order))
        assert result.correct, result.reason
    ranked, places, moved = reference(keys, values)
    assert not judge.check((ranked, places, moved.roll(1, -1))).correct
    if isinstance(make, torch.dtype):  # where most keys are equal, their places may be any
        assert not judge.check((ranked, places.roll(1, 0), moved)).correct


@pytest.mark.parametrize("dtype", NARROW)
def test_equal_sums_may_be_chosen_in_either_order_when_rounding_makes_them_equal(dtype):
    for seed in range(4):
        torch.manual_seed(seed)
        a, b = torch.randn(4, 200).to(dtype), torch.randn(4, 200).to(dtype)
        judge = Judge(lambda a, b: (a + b).sort(dim=-1), (a, b))
        for order in (first_of_equals, last_of_equals):
            assert judge.check(order(a + b)).correct
            assert judge.check([order(a.float() + b.float())[0].to(dtype), order(a.float() + b.float())[1]]).correct


WHOLE = {  # of whole numbers, and of halves: the reference, and what is wrong
    "looked up": (lambda x: (x.abs() * 2).long().float().sin(), lambda x: (x.abs() * 2 + 1).long().float().sin()),
    "grouped": (lambda x: (x / 8).floor(), lambda x: ((x - 1) / 8).floor()),
    "remainder": (lambda x: x % 4, lambda x: torch.where(x % 4 == 0, 4.0, x % 4).to(x.dtype)),
    "compared": (lambda x: (x >= x.flip(0)).float().mean(0), lambda x: (x > x.flip(0)).float().mean(0)),
    "counted": (lambda x: (x == x.roll(1)).sum(-1), lambda x: ((x - x.roll(1)).abs() <= 0.5).sum(-1)),
    "half up": (lambda x: (x / 2).round(), lambda x: (x / 2 + 0.5).floor()),
    "half down": (lambda x: (x * 0.5).round() + 1, lambda x: (x * 0.5 - 0.5).ceil() + 1),
    "half away": (lambda x: (x / 2).round(), lambda x: x.sign() * (x.abs() / 2 + 0.5).floor()),
    "toward zero": (lambda x: torch.div(x, 2, rounding_mode="floor"), lambda x: (x / 2).trunc()),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_and_halves_are_exact(name, step, dtype):
    reference, other = WHOLE[name]
    for seed in range(2):
        torch.manual_seed(seed)
        x = (torch.randint(-40, 40, (16, 24)) / step).to(dtype)
        if not torch.equal(reference(x), other(x)):
            judge = Judge(reference, (x,))
            assert judge.check(reference(x)).correct
            assert not judge.check(other(x)).correct


EDGES = torch.linspace(-2, 2, 33)
ON_EDGES = {  # of numbers of 16 bits, some of which lie on an edge: the reference, and another implementation
    "histogram": (
        lambda x: torch.histc(x, 32, -2, 2),
        lambda x: torch.bincount((8 * x + 16).long(), None, 32).to(x.dtype),
    ),
    "bins": (lambda x: torch.bucketize(x, EDGES), lambda x: (x[..., None] > EDGES).sum(-1)),
    "mask": (lambda x: x > x.flip(0), lambda x: x.flip(0) < x),
    "threshold": (lambda x: x.masked_fill(x < 0.5, 0), lambda x: torch.where(x >= 0.5, x, 0)),
}


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", ON_EDGES)
def test_numbers_of_16_bits_are_exact(name, dtype):
    reference, other = ON_EDGES[name]
    for _ in range(3):
        x = (torch.rand(1000) * 4 - 2).clamp(-1.99, 1.99).to(dtype)
        x[:40] = torch.cat([EDGES[1:-1], x[-40:-31].flip(0)]).to(dtype)
        judge = Judge(lambda x: reference(x.float()), (x,))
        assert judge.check(reference(x.float())).reason == ""
        assert judge.check(other(x.float())).reason == ""
        beside = x.float() * (1 + 2**-20 * torch.ones(1000).index_fill(0, torch.arange(500), -1))
        assert judge.check(reference(beside)).reason


@pytest.mark.parametrize("dtype", DTYPES)
def test_limits_for_whole_numbers_allow_what_rounding_does_to_results(dtype):
    for seed in range(2):
        torch.manual_seed(seed)
        x, w = torch.randint(-9, 10, (32, 96)).to(dtype), torch.randint(-3, 4, (96, 40)).to(dtype)
        for function, others in {
            matmul: [in_a_loop, in_parts],
            softmax: [lambda x, w: torch.exp2((x.float() - x.float().amax(-1, keepdim=True)) * 1.442695).to(x.dtype)],
            centred: [lambda x, w: (x.float() - x.float().sum(-1, keepdim=True) * (1 / 96)).to(x.dtype)],
            thirds: [lambda x, w: (x.float() * (1 / 3) - 1).to(x.dtype)],
            roots: [lambda x, w: (2 * torch.rsqrt(x.float().abs() + 1) - 1).to(x.dtype)],
        }.items():
            args = (x, w) if function is matmul else (x,)
            for other in others:
                y = other(x, w)
                y = (y.float() / y.float().sum(-1, keepdim=True)).to(dtype) if function is softmax else y
                result = Judge(function, args).check(y)
                assert result.correct, (function, result.reason)


def test_both_outputs_of_topk_are_compared():
    x = torch.randn(20, 50)
    values, places = x.topk(5, -1)
    judge = Judge(lambda x: x.topk(5, -1), (x,))
    assert judge.check((values, places)).correct
    result = judge.check((values, places.flip(-1)))
    assert result.reason.startswith("[1]: ")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers(dtype):
    x = torch.randn(8, 64, dtype=dtype)
    judge = Judge(lambda x: torch.fft.fft(x), (x,))
    assert not judge.refused
    assert judge.check(torch.fft.fft(x)).correct
    assert not judge.check(torch.fft.fft(x).conj().resolve_conj()).correct
    assert not judge.check(torch.fft.fft(x) * 1.01).correct


def test_an_output_of_float8():
    x = torch.randn(40, 64)
    judge = Judge(lambda x: (4 * x).to(torch.float8_e4m3fn), (x,))
    y = (4 * x).to(torch.float8_e4m3fn)
    assert judge.check(y).correct
    assert not judge.check((8 * x).to(torch.float8_e4m3fn)).correct


def test_an_empty_output_alone_is_right_with_a_note():
    judge = Judge(torch.relu, (torch.empty(0, 3),))
    result = judge.check(torch.empty(0, 3))
    assert result.correct
    assert not result.unknown
    assert result.note == "no output has an element, so any numbers would pass"
    assert "shape" in judge.check(torch.empty(0, 4)).reason


def test_an_empty_output():
    judge = Judge(torch.exp, (torch.zeros(0, 4),))
    assert judge.check(torch.zeros(0, 4)).correct
    assert not judge.check(torch.zeros(4, 0)).correct


def test_numbers_strings_and_none():
    def function(x: Tensor) -> dict[str, Any]:
        return {"mean": float(x.mean()), "count": x.numel(), "name": "mean", "rest": None, "y": x.exp()}

    x = torch.rand(100)
    judge, right = Judge(function, (x,)), function(x)
    assert judge.check(right).correct
    for key, value in {"mean": right["mean"] * 1.01, "count": 99, "name": "sum", "rest": 1}.items():
        result = judge.check(right | {key: value})
        assert result.reason.startswith(f'["{key}"]: '), key


def test_a_missing_or_extra_output_has_its_path():
    def function(x: Tensor) -> dict[str, Any]:
        return {"y": x.exp(), "past_key_values": ((x.sin(), x.cos()),)}

    x = torch.randn(30)
    judge, right = Judge(function, (x,)), function(x)
    assert judge.check(right).correct
    missing = judge.check(right | {"past_key_values": ((x.sin(),),)})
    assert missing.reason == '["past_key_values"][0][1]: missing'
    assert judge.check(x.exp()).reason == "it returns one value; the reference returns 3"
    for others in ((x.exp(), x.exp()), []):
        said = f"it returns {len(others)} values; the reference returns one"
        assert Judge(torch.exp, (x,)).check(others).reason == said
    assert not missing.compared
    assert judge.check(right | {"more": x}).reason == '["more"]: not expected'
    wrong = judge.check(right | {"past_key_values": ((x.sin(), x.sin()),)})
    assert wrong.reason.startswith('["past_key_values"][0][1]: ')


def test_shape_and_dtype_must_be_those_of_the_reference():
    x = torch.randn(6, 8)
    judge = Judge(torch.exp, (x,))
    assert judge.check(x.exp().t()).reason == "the output: shape (8, 6) where the reference has (6, 8)"
    assert judge.check(x.exp().half()).reason == "the output: dtype torch.float16 where torch.float32 is expected"
    assert judge.check("exp").reason == "the output: a str where a tensor is expected"


@dataclass
class Batch:
    x: Tensor
    weights: list[Tensor]
    scale: float


def test_arguments_may_be_nested():
    batch = Batch(torch.randn(20, 30), [torch.randn(30, 10)], 0.5)

    def function(batch: Batch, *, options: dict[str, Any]) -> Tensor:
        return (batch.x @ batch.weights[0]) * batch.scale + options["bias"]

    kwargs = {"options": {"bias": torch.randn(10)}}
    judge = Judge(function, (batch,), kwargs)
    assert judge.check(function(batch, **kwargs)).correct
    assert not judge.check(function(batch, options={"bias": 0.0})).correct


# --- state ---


def test_changed_arguments_are_the_outputs_of_a_function_that_returns_nothing():
    def add(x: Tensor, out: Tensor) -> None:
        torch.add(x, 1, out=out)

    x, out = torch.randn(50), torch.zeros(50)
    judge = Judge(add, (x, out))
    assert not out.any()
    assert judge.check(None, []).reason == "it does not change out, as the reference does"
    out.copy_(x)
    assert judge.check(None, [out]).reason.startswith("out: 50 of 50 elements wrong")
    out.copy_(x + 1)
    assert judge.check(None, [out]).correct
    assert judge.check(out, [out]).correct  # it may return more
    assert judge.check(None, [x, out]).reason == "it changes x, which the reference leaves as it is"


def test_what_a_reference_writes_and_returns_may_be_left_there_by_a_function_that_returns_nothing():
    """As a kernel of CUDA C++ does."""
    x, out = torch.randn(50), torch.zeros(50)
    judge = Judge(lambda x, out: torch.mul(x, 2, out=out), (x, out))
    assert "50 of 50 elements wrong" in judge.check(None, []).reason
    out.copy_(2 * x)
    assert judge.check(None, [out]).reason == ""
    assert judge.check(out, [out]).reason == ""
    out[3] += 1
    assert "1 of 50 elements wrong" in judge.check(None, [out]).reason
    both = Judge(lambda x, out: (torch.mul(x, 2, out=out), x + 1), (x, out))
    assert both.check(None, [out]).reason == "it returns one value; the reference returns 2"


@pytest.mark.parametrize("in_place", [True, False])
def test_a_reference_that_runs_in_float64_alone_tells_what_it_changes_and_returns(in_place):
    def inverse(x: Tensor, out: Tensor) -> Tensor | None:
        return None if in_place and x.copy_(torch.linalg.inv(x)) is x else torch.linalg.inv(x)

    x, out = (4 * torch.eye(16) + torch.rand(16, 16)).half(), torch.empty(16, 16).half()
    judge = Judge(inverse, (x, out))
    (x if in_place else out).copy_(torch.linalg.inv(x.float()))
    assert judge.refused == ""
    assert judge.check(None, [x if in_place else out]).reason == ""


def test_an_argument_may_be_scratch_of_a_function_that_returns_a_number():
    x, scratch = torch.randn(50), torch.zeros(50)
    judge = Judge(lambda x, scratch: int((x > 0).sum()), (x, scratch))
    scratch.copy_(x)
    assert judge.check(int((x > 0).sum()), [scratch]).reason == ""
    assert judge.check(int((x > 0).sum()) + 1, [scratch]).reason != ""


def test_an_argument_full_of_negative_zeros_is_changed_by_zeros():
    out = torch.full((8,), -0.0)
    judge = Judge(lambda x, out: (out.zero_(), x.mul_(2))[1], (x := torch.randn(8), out))
    x.mul_(2)
    out.zero_()
    assert judge.check(x, [x, out]).reason == ""


def test_changes_that_are_not_noticed_are_not_called_right():
    def double(x: Tensor) -> None:
        x.mul_(2)

    judge = Judge(double, (torch.randn(50),))
    result = judge.check(None, None)
    assert (result.compared, result.unknown) == (False, "what it leaves in x is not compared: no memory for copies")


def test_a_change_below_the_rounding_of_the_reference_is_right():
    """As that of parameters in bfloat16 by a small learning rate."""
    x = torch.linspace(1, 2, 64, dtype=torch.bfloat16)
    judge = Judge(lambda x, step: x.sub_(x * step), (x, torch.tensor(1e-3)))
    assert judge.check(x, [x]).reason == ""
    x.copy_(x.float() * 0.998)
    assert judge.check(x, [x]).reason == ""
    x.copy_(x.float() * 0.9)
    assert judge.check(x, [x]).reason


def test_a_view_of_what_is_changed_is_another_argument():
    def write(cache: Tensor, start: Tensor, empty: Tensor, none: Tensor) -> None:
        cache[50:] = 1

    cache, empty = torch.randn(100), torch.empty(0)
    judge = Judge(write, (cache, cache[:10], empty, empty[:0]))
    cache[50:] = 1
    assert judge.check(None, [cache]).reason == ""


def test_changed_arguments_of_any_kind_are_compared_beside_the_outputs():
    def step(state: dict[str, Any], *xs: Tensor, layer: torch.nn.Module) -> Tensor:
        state["mean"][0].lerp_(xs[0], 0.25)
        xs[1].neg_()
        return layer(xs[0])

    def args() -> tuple[Any, ...]:
        torch.manual_seed(0)
        return {"mean": (torch.randn(40, 8),)}, torch.randn(40, 8), torch.arange(5)

    given, layer = args(), torch.nn.BatchNorm1d(8)
    judge = Judge(step, given, {"layer": layer})
    y = step(*given, layer=layer)
    state, x, places = given
    buffers = [*layer.buffers()]
    changed = [state["mean"][0], places, *buffers]
    assert judge.check(y, changed).reason == ""
    assert judge.check(y).reason == ""  # without knowledge of what changed, outputs alone are compared
    assert judge.check(y, changed[:1]).reason == ""  # values count: a change may be too small to be noticed
    assert judge.check(y * 1.01, changed).reason
    assert judge.check(y, changed[:-1]).reason == ""  # a kernel need not count batches
    for tensor, name in zip(
        changed[:-1],
        ('state["mean"][0]', "xs[1]", "layer.running_mean", "layer.running_var"),
        strict=True,
    ):
        kept = tensor.clone()
        tensor.add_(1)
        assert judge.check(y, changed).reason.startswith(f"{name}: ")
        others = [other for other in changed if other is not tensor]
        assert judge.check(y, others).reason == f"it does not change {name}, as the reference does"
        tensor.copy_(kept)
    assert judge.check(y, [*changed, x]).reason == "it changes xs[0], which the reference leaves as it is"


def test_an_implementation_may_change_the_arguments_of_a_reference_that_changes_none():
    x = torch.randn(50)
    judge = Judge(torch.neg, (x,))
    right = judge.check(-x, [x])
    assert (right.reason, right.note) == ("", "it changes args[0], which the reference leaves as it is")
    assert judge.check(None, [x.neg_()]).correct  # and leave the result there


def test_changes_are_neither_compared_nor_named_if_they_do_not_count():
    def layer(x: Tensor, norm: torch.nn.Module) -> Tensor:
        return norm(x)

    x, norm = torch.randn(40, 8), torch.nn.BatchNorm1d(8)
    judge = Judge(layer, (x, norm), state=False)
    result = judge.check(norm(x), [norm.running_mean])
    assert (result.reason, result.note) == ("", judge.note)


def test_an_update_that_may_be_left_out_is_noted():
    def step(x: Tensor, mean: Tensor) -> Tensor:
        mean.lerp_(x, 1e-3)
        return x.exp()

    args = torch.randn(50), torch.zeros(50)
    assert Judge(step, args).note == ""
    assert Judge(step, args, atol=1e-2).note == "zeros would pass in mean; mean left unchanged would pass"
    note = Judge(lambda x, copy: copy.copy_(x) * 1e-3, args, atol=1e-2).note
    assert note.startswith("zeros would pass in the output; the result of")


def test_a_module_is_a_reference_and_its_buffers_stay():
    norm = torch.nn.BatchNorm1d(16)
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    x = 3 + 2 * torch.randn(40, 16)
    judge = Judge(norm, (x,))
    assert all(torch.equal(buffer, before[name]) for name, buffer in norm.named_buffers())
    y = norm(x)
    assert judge.check(y).correct
    assert not judge.check(1.01 * y).correct


def test_a_module_may_be_an_argument_and_a_reference_may_use_tensors_of_its_own():
    linear, bias = torch.nn.Linear(30, 20), torch.randn(20)

    def function(layer: torch.nn.Module, x: Tensor) -> Tensor:
        return layer(x) + bias

    x = torch.randn(40, 30)
    judge = Judge(function, (linear, x))
    assert judge.check(function(linear, x)).correct
    assert not judge.check(linear(x)).correct


def test_gradients_inside_the_reference():
    def gradient(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(F.gelu(x @ w).square().sum(), (x, w))

    args = tuple(torch.randn(shape, requires_grad=True) for shape in ((20, 30), (30, 10)))
    judge, right = Judge(gradient, args), gradient(*args)
    assert judge.check(right).correct
    assert judge.check((right[0], right[1] * 1.01)).reason.startswith("[1]: ")


# --- cases that cannot tell ---


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: F.dropout(x), "draws random numbers"),
        (lambda x: x + torch.randn_like(x), "draws random numbers (randn_like)"),
        (lambda x: x[(x * 1e9).sin() > 0], "other shapes in float64"),
        (lambda x: x.view(torch.int32) + 1, "give atol and rtol"),
    ],
)
def test_a_case_that_cannot_tell_is_refused(function, words):
    judge = Judge(function, (torch.randn(64, 64),))
    assert words in judge.refused
    assert "\n" not in judge.refused
    result = judge.check(torch.zeros(64, 64))
    assert result.unknown == judge.refused
    assert result.columns()["correct"] is None


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x - x, "zeros"),
        (lambda x: torch.sigmoid(100 + x.abs()), "a constant"),
        (lambda x: 100 * torch.arange(1, 65.0) + x * 1e-5, "the output for other inputs"),
    ],
)
def test_outputs_that_anything_would_match_are_not_called_right_but_others_are_wrong(function, words):
    x = torch.randn(64, 64)
    judge = Judge(function, (x,))
    assert words in judge.unproven
    right = judge.check(function(x))
    assert (right.columns()["correct"], right.unknown) == (None, judge.unproven)
    wrong = judge.check(function(x) + 1)
    assert (wrong.correct, wrong.unknown) == (False, "")


def test_shapes_and_types_of_random_outputs_are_compared():
    judge = Judge(lambda x: (x + torch.randn_like(x), 3), (torch.ones(4, 1),))
    x = torch.ones(4, 1)
    unknown = judge.check((x, 3))
    assert (unknown.reason, unknown.correct) == ("", True)
    assert unknown.unknown.endswith("or write check() in a workload file")
    for outputs, reason in [
        ((x[:, 0], 3), "[0]: shape (4,) where the reference has (4, 1)"),
        ((x.double(), 3), "[0]: dtype torch.float64 where torch.float32 is expected"),
        ((x, "3"), "[1]: a str where a int is expected"),
        (x, "it returns one value; the reference returns 2"),
        ((x, 3, x), "[2]: not expected"),
    ]:
        found = judge.check(outputs)
        assert (found.correct, found.unknown) == (False, "")
        assert found.reason == reason
    some = Judge(lambda x: x[torch.rand(64) < 0.5], (torch.ones(64),))  # of a random shape
    assert some.check(torch.ones(3)).correct


def test_dropout_that_drops_nothing_is_not_random():
    x = torch.randn(30, 30)
    assert not Judge(lambda x: F.dropout(x, 0.0) + F.dropout(x, training=False), (x,)).refused
    assert "eval()" in Judge(torch.nn.Dropout(), (x,)).refused
    assert not Judge(torch.nn.Dropout().eval(), (x,)).refused


def test_flex_attention_is_judged_by_the_operators_that_it_is_made_of():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from torch.nn.functional import scaled_dot_product_attention as attention

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")
    qkv = torch.randn(3, 1, 2, 128, 16)
    judge = Judge(lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s + h, mask), qkv)
    assert judge.check(attention(*qkv, is_causal=True)).correct
    assert not judge.check(attention(*qkv)).correct
    assert not judge.check(1.01 * attention(*qkv, is_causal=True)).correct


def test_attention_is_not_random():
    q = torch.randn(1, 2, 16, 8)
    assert not Judge(lambda q: F.scaled_dot_product_attention(q, q, q), (q,)).refused


def test_a_shape_that_depends_on_rounding_is_refused():
    judge = Judge(lambda x: x[x.square().mean(-1) >= 1.0].exp(), (torch.ones(64, 64),))
    assert "shape of an output depends on rounding" in judge.refused


def test_ties_of_inputs_that_decide_a_shape_are_kept():
    x = torch.randint(0, 9, (30, 40)).float()

    def reference(x: Tensor) -> list[Tensor]:
        values, places, counts = torch.unique(x, return_inverse=True, return_counts=True)
        return [values.sqrt(), places, counts, x[x >= 5.0], torch.unique(x, dim=0)]

    judge, right = Judge(reference, (x,)), reference(x)
    assert judge.refused == ""
    assert judge.check(right).correct
    for place in range(5):
        wrong = [*right]
        wrong[place] = right[place].flip(0)
        assert not judge.check(wrong).correct


DERIVATIVES = {
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
    "vmap of grad": lambda f, x: torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](torch.ones_like(x))[0],
    "jacrev": lambda f, x: torch.func.jacrev(f)(x[0]),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x[0]),
    "hessian": lambda f, x: torch.func.hessian(lambda x: f(x).sum())(x[0]),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_references_that_differentiate_by_torch_func_run_in_float64(name):
    x, w = torch.randn(8, 6), torch.randn(6, 6)
    judge = Judge(lambda x, w: DERIVATIVES[name](lambda x: torch.tanh(x @ w), x), (x, w))
    assert judge.refused == ""
    right = DERIVATIVES[name](lambda x: 1 - 2 / (1 + (2 * (x @ w)).exp()), x)
    assert judge.check(right).correct
    assert not judge.check(right * 1.01).correct


def test_functions_of_shapes_alone_are_not_refused():
    assert not Judge(lambda x: torch.ones(x.shape).tril(), (torch.randn(30, 30),)).refused


def test_what_a_narrow_type_cannot_tell_is_noted():
    x = torch.randn(20, 20)
    assert "1 % too large" in Judge(lambda x: (x * 3).to(torch.float8_e4m3fn), (x,)).note
    assert Judge(softmax, (x,)).note == ""


def test_what_the_reference_raises_is_raised():
    def fails(x: Tensor) -> Tensor:
        raise KeyError("mask")

    with pytest.raises(KeyError, match="mask"):
        Judge(fails, (torch.ones(3),))


def test_the_random_state_and_the_default_dtype_stay():
    state = torch.get_rng_state()
    Judge(softmax, (torch.ones(2, 3).cumsum(1),))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32


def test_a_compiled_reference_is_compiled_once_for_its_own_types():
    compiled = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        compiled.append(graph)
        return graph

    x = torch.randn(50)
    judge = Judge(torch.compile(lambda x: x.sin() * 2, backend=backend), (x,))
    assert len(compiled) == 1
    assert judge.check(x.sin() * 2).correct
    assert not judge.check(x.sin() * 2.001).correct


def test_a_patched_operator_of_torch_changes_no_judgement(monkeypatch):
    args = inputs_of(softmax, torch.float32)
    judge, wrong = Judge(softmax, args), softmax(*args) * 1.01
    for name in ("abs", "sub", "__sub__", "max", "isfinite", "sum"):
        monkeypatch.setattr(Tensor, name, lambda self, *_, **__: self * 0)
    for name in ("abs", "sub", "max", "isfinite", "sum"):
        monkeypatch.setattr(torch, name, lambda x, *_, **__: x * 0)
    correct = judge.check(wrong).correct
    monkeypatch.undo()
    assert not correct


def test_an_empty_output_that_claims_a_shape_is_wrong(monkeypatch):
    args = inputs_of(softmax, torch.float32)
    judge, shape = Judge(softmax, args), args[0].shape
    monkeypatch.setattr(Tensor, "shape", property(lambda self: shape))
    reason = judge.check(torch.empty(0)).reason
    monkeypatch.undo()
    assert reason.startswith("the output: shape (0,) where")


def test_no_compiler_is_imported():
    code = (
        "import sys, torch; from runner.subject.tolerance import Judge; from runner.timing import unfinished\n"
        "x = torch.randn(8, 8)\n"
        "Judge(lambda x: (x @ x).softmax(-1), (x,)).check((x @ x).softmax(-1))\n"
        "with unfinished._Works(): x + x\n"
        "print([m for m in sys.modules if m.split('.')[:2] in (['torch', '_inductor'], ['torch', '_dynamo'])])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


# --- the tolerances of shipped workloads ---

SHIPPED: dict[str, dict[str, Any]] = {
    "add": {"rows": 24, "cols": 40},
    "argmax": {"rows": 24, "cols": 40},
    "cdist": {"n": 20, "m": 24, "d": 16},
    "cumsum": {"rows": 12, "cols": 200},
    "gelu": {"rows": 24, "cols": 40},
    "matmul": {"size": 1, "m": 24, "n": 20, "k": 100},
    "norm": {"rows": 24, "cols": 100},
    "reduce_max": {"rows": 24, "cols": 40},
    "reduce_sum": {"rows": 24, "cols": 100},
    "softmax": {"rows": 24, "cols": 100},
    "square": {"rows": 24, "cols": 40},
    "transpose": {"rows": 24, "cols": 40},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_and_automatic_tolerances_agree(make, error, name, dtype):
    workload, inputs = make(name, dtype=dtype, **SHIPPED[name])
    function = getattr(import_module(f"runner.kernels.{name}.torch"), name)

    def reference(*inputs: Tensor) -> Any:
        return workload.call(function, inputs).run()

    try:
        right = reference(*inputs)
    except Unsupported:
        return
    judge = Judge(reference, inputs)
    assert not judge.refused
    assert error(workload.reference(*inputs), right) <= 1
    assert judge.check(right).correct
    for wrong in (
        [torch.zeros_like(y) for y in right],
        [y.double().mean().to(y.dtype).expand(y.shape).contiguous() for y in right],
    ):
        assert error(workload.reference(*inputs), wrong) > 1
        assert not judge.check(wrong).correct


def by_qr(a, b):
    q, r = torch.linalg.qr(a)
    return torch.linalg.solve_triangular(r, q.T @ b, upper=True)


def eigenvalues(c, *, mirrored=False):
    companion = torch.zeros(c.shape[0], 5, 5)
    companion[:, 1:, :-1] = torch.eye(4)
    companion[:, 0] = -c
    return torch.linalg.eigvals(companion.mT.flip(1, 2) if mirrored else companion).abs().sort(-1).values


def polynomials():
    c = torch.ones(9, 1)
    for k in range(5):
        root = 2 * k + torch.randn(9, 1)
        c = F.pad(c, (0, 1)) - F.pad(c, (1, 0)) * root
    return (c[:, 1:],)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("function", "others", "make"),
    [
        (
            torch.linalg.solve,
            [lambda a, b: torch.linalg.solve(a.flip(0), b.flip(0)), lambda a, b: torch.linalg.inv(a) @ b, by_qr],
            lambda: (torch.randn(200, 200), torch.randn(200, 3)),
        ),
        (torch.linalg.inv, [lambda a: torch.linalg.inv(a.T).T], lambda: (torch.randn(150, 150),)),
        (eigenvalues, [lambda c: eigenvalues(c, mirrored=True)], polynomials),  # their coefficients are large and small
    ],
)
def test_another_order_of_an_elimination_is_right(function, others, make, seed):
    torch.manual_seed(seed)
    given = make()
    judge = Judge(function, given)
    assert all(judge.check(other(*given)).correct for other in (function, *others))
    narrow = [x.bfloat16().float() for x in given]
    assert judge.check(function(*narrow)).err_over_tol > 100
    nearly = [given[0] + 3e-4 * given[0].flip(0), *given[1:]]
    assert not judge.check(function(*nearly)).correct


def one_by_one(base, i, x):
    return base.index_put((i.flip(0),), x.flip(0), accumulate=True)  # of torch on a CPU: in their own type


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("signed", [True, False])
def test_terms_may_be_scattered_one_by_one_in_a_narrow_type(signed, dtype):
    base, x = torch.randn(37, 5), torch.randn(401, 5)
    i = torch.randint(37, (401,))
    given = [(each if signed else each.abs()).to(dtype) for each in (base, x)]
    given.insert(1, i)
    judge = Judge(lambda base, i, x: base.index_add(0, i, x), given)
    assert judge.check(one_by_one(*given)).correct
    assert judge.check(one_by_one(given[0].float(), i, given[2].float()).to(dtype)).correct
    assert not judge.check(given[0].index_put((i,), given[0][i] + given[2])).correct  # updates get lost
    assert not judge.check(one_by_one(given[0], i[1:], given[2][1:])).correct
    single = given[0].index_add(0, i[:1], given[2][:1])
    judge = Judge(lambda base, i, x: base.index_add(0, i, x), (given[0], i[:1], given[2][:1]))
    assert not judge.check(single + single.abs() * 2**-5).correct  # without partial sums nothing more is allowed


def by_weights(x, size):
    places = ((torch.arange(size) + 0.5) * x.shape[-1] / size - 0.5).clamp(min=0)
    first = places.long()
    return x[..., first].lerp(
        x[..., (first + 1).clamp(max=x.shape[-1] - 1)], (places - first).expand(*x.shape[:-1], size)
    )


@pytest.mark.parametrize("seed", [2, 5])
def test_weights_of_an_interpolation_may_be_rounded(seed):
    torch.manual_seed(seed)
    x = torch.randn(2, 3, 9, 13)

    def reference(x, align_corners=False):
        return F.interpolate(x, size=(19, 27), mode="bilinear", align_corners=align_corners)

    judge = Judge(reference, (x,))
    assert judge.check(by_weights(by_weights(x, 27).mT, 19).mT.contiguous()).correct
    assert not judge.check(reference(x.bfloat16().float())).correct
    assert not judge.check(reference(x, align_corners=True)).correct


def distances(x, y):
    products = torch.zeros(len(x), len(y))
    for k in range(x.shape[1]):
        products += x[:, k, None] * y[:, k]
    return (x.square().sum(1)[:, None] + y.square().sum(1) - 2 * products).clamp(min=1e-12).sqrt()


@pytest.mark.parametrize("width", [3, 32, 128])
@pytest.mark.parametrize("seed", range(2))
def test_distances_may_be_computed_by_another_product_also_from_a_point_to_itself(width, seed):
    torch.manual_seed(seed)
    x, y = torch.randn(60, width), torch.randn(70, width)
    y[:30] = x[30:]
    judge = Judge(torch.cdist, (x, y))
    for right in (torch.cdist(x, y), distances(x, y), (x[:, None] - y).norm(dim=-1)):
        assert judge.check(right).reason == ""
    row, equal = torch.cdist(x, y), torch.cdist(x, y)
    row[3] *= 1.005
    equal[equal < 0.02] = 0.05
    for wrong in (1.005 * equal, row, equal, torch.cdist(x.bfloat16().float(), y.bfloat16().float())):
        assert not judge.check(wrong).correct


def naive_gelu(x):
    return 0.5 * x * (1 + torch.erf(x / 2**0.5))


def naive_mish(x):
    return x * torch.tanh(torch.log1p(torch.exp(x)))


def naive_softmax(x):
    weights = torch.exp(x - x.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)


def naive_layer_norm(x):
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, correction=0) + 1e-5)


@pytest.mark.parametrize(
    ("formula", "function"),
    [
        (naive_gelu, F.gelu),  # its erf on a CPU has an error of 8 unit roundoffs
        (naive_mish, F.mish),
        (naive_softmax, lambda x: x.softmax(-1)),
        (naive_layer_norm, lambda x: F.layer_norm(x, x.shape[-1:])),
        (lambda x: x / (1 + torch.exp(-x)), F.silu),
        (lambda x: torch.exp(x) - 1, torch.expm1),
        (lambda x: 1 - torch.erf(x), torch.erfc),
    ],
)
def test_a_function_of_torch_is_right_by_its_formula(formula, function):
    x = torch.randn(256, 1024)
    assert Judge(formula, (x,)).check(function(x)).reason == ""


def by_sigmoid(x):
    return 2 * torch.sigmoid(2 * x) - 1


def by_log(x):
    return torch.where(x > 20, x, torch.log(1 + torch.exp(x)))


@pytest.mark.parametrize(
    ("function", "formula"),
    [
        (torch.tanh, by_sigmoid),
        (torch.tanh, lambda x: (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1)),
        (F.elu, lambda x: torch.where(x > 0, x, torch.exp(x) - 1)),
        (F.selu, lambda x: 1.05070098735548 * torch.where(x > 0, x, 1.67326324235438 * (torch.exp(x) - 1))),
        (lambda x: F.celu(x, 0.5), lambda x: torch.where(x > 0, x, torch.exp(2 * x) / 2 - 0.5)),
        (F.softplus, by_log),
        (F.logsigmoid, lambda x: -by_log(-x)),
        (F.mish, lambda x: x * by_sigmoid(by_log(x))),
        (lambda x: F.binary_cross_entropy_with_logits(x, x.clamp(0, 1), reduction="none"), None),
        (
            lambda x: F.soft_margin_loss(x, x.flip(0).sign(), reduction="none"),
            lambda x: torch.log(1 + torch.exp(-x * x.flip(0).sign())),
        ),
        (lambda x: torch.logaddexp(x, x.flip(0)), lambda x: torch.log(torch.exp(x) + torch.exp(x.flip(0)))),
    ],
)
@pytest.mark.parametrize("scale", [1, 4])
def test_a_kernel_may_round_the_1_in_its_formula_of_a_function(function, formula, scale):
    for _ in range(2):
        x = torch.randn(64, 100) * scale
        judge = Judge(function, (x,))
        cross_entropy = x.clamp(min=0) - x * x.clamp(0, 1) + torch.log(1 + torch.exp(-x.abs()))
        right = judge.check(cross_entropy if formula is None else formula(x))
        assert right.correct, right.reason
        y = function(x)
        row = y.clone()
        row[7] *= 1.01
        for wrong in (y * 1.001, row, y.bfloat16().float(), function(x.bfloat16().float()), function(x * 1.001)):
            assert not judge.check(wrong).correct


def attention_block(q, k, v, w):
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch.nn.functional.silu((q + y) @ w) @ w


def weights_of(q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
    scores = q.float() @ k.float().mT / q.shape[-1] ** 0.5
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1)


def outer(a: Tensor, b: Tensor) -> Tensor:
    return a.float().unsqueeze(-1) * b.float().unsqueeze(-2)


IN_FLOAT32: dict[str, tuple[Any, ...]] = {  # shapes, a function with a change of factors of products, another function
    "attention": (
        [(2, 24, 16)] * 3,
        lambda change, q, k, v: change(weights_of(q, k, CAUSAL)) @ v.float(),
        lambda q, k, v: weights_of(q, k, CAUSAL.roll(1, 1)) @ v.float(),
    ),
    "mlp": (
        [(20, 24), (32, 24), (12, 32)],
        lambda change, x, a, b: change(F.gelu(x.float() @ a.float().mT)) @ b.float().mT,
        lambda x, a, b: F.gelu(x.float() @ a.float().mT, approximate="tanh") @ b.float().mT * 1.01,
    ),
    "state": (
        [(12, 8, 6), (12, 8, 6)],
        lambda change, k, q: q.float() @ change((k.float().mT @ k.float()).cumsum(0)),
        lambda k, q: q.float() @ (k.float().mT @ k.float()).cumsum(0).roll(1, 0),
    ),
    "state, by sums": (
        [(12, 6, 8), (12, 6, 8)],
        lambda change, k, q: (q.float().unsqueeze(-1) * change(outer(k, k).cumsum(0))).sum(-2),
        lambda k, q: (q.float().unsqueeze(-1) * outer(k, k).cumsum(0).roll(1, 0)).sum(-2),
    ),
}
CAUSAL = torch.ones(24, 24, dtype=torch.bool).tril()


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", IN_FLOAT32)
@pytest.mark.parametrize("seed", range(2))
def test_factors_of_products_may_have_16_bits_where_a_reference_computes_in_float32(name, dtype, seed):
    torch.manual_seed(seed)
    shapes, function, other = IN_FLOAT32[name]
    inputs = tuple(torch.randn(shape).to(dtype) for shape in shapes)
    judge = Judge(lambda *args: function(lambda factor: factor, *args).to(dtype), inputs)
    assert judge.check(function(lambda factor: factor.to(dtype).float(), *inputs).to(dtype)).correct
    assert not judge.check(function(lambda factor: factor.to(torch.float8_e5m2).float(), *inputs).to(dtype)).correct
    assert not judge.check(other(*inputs).to(dtype)).correct


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("seed", range(2))
def test_gradients_of_flash_attention_are_right_where_a_reference_computes_in_float32(dtype, seed):
    torch.manual_seed(seed)
    inputs = [torch.randn(2, 3, 24, 16, dtype=dtype) for _ in range(3)]
    function = WithGradients(lambda q, k, v: (weights_of(q, k, CAUSAL) @ v.float()).to(dtype), outputs=True)
    judge = Judge(function, inputs)
    y, dq, dk, dv = function.of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), inputs, {})
    assert judge.check((y, dq, dk, dv)).correct
    for wrong in ((y, dq * 1.02, dk, dv), (y, dq, dk, dv.roll(1, -2)), (y, dk, dq, dv)):
        assert not judge.check(wrong).correct


@pytest.mark.parametrize("dtype", NARROW)
def test_products_of_float32_under_autocast_have_16_bits_as_autocast_gives_them(dtype):
    torch.manual_seed(0)
    inputs = torch.randn(48, 64), torch.randn(96, 64) / 8, torch.randn(80, 96) / 10
    labels = torch.randint(0, 80, (48,))

    def loss(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype):
            y = F.linear(F.gelu(F.linear(x, a)), b)
            return F.cross_entropy(y, labels), y

    def fused(hidden: torch.dtype, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        x, a, b = (one.to(dtype).float() for one in (x, a, b))
        y = F.gelu(x @ a.mT).to(hidden).float() @ b.mT  # what autocast keeps in 16 bits stays in float32
        return F.cross_entropy(y, labels), y.to(dtype)

    function = WithGradients(loss, outputs=True)
    judge = Judge(function, inputs)
    assert not judge.refused
    own = function(*inputs)
    for right in (own, function.of(partial(fused, dtype), inputs, {})):
        assert judge.check(right).correct
    for wrong in (own[2] * 1.02, own[2].roll(1, -1)):
        assert not judge.check((*own[:2], wrong, *own[3:])).correct
    assert not judge.check(function.of(partial(fused, torch.float8_e5m2), inputs, {})).correct


@pytest.mark.parametrize("dtype", NARROW)
def test_multihead_attention_under_autocast_may_keep_what_it_computes_in_float32(dtype):
    torch.manual_seed(0)
    attention, x = torch.nn.MultiheadAttention(32, 2, batch_first=True), torch.randn(2, 24, 32)

    def reference(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype):
            return attention(x, x, x, need_weights=False)[0].to(dtype)

    judge = Judge(reference, (x,))
    rounded = deepcopy(attention).to(dtype).float()
    right = rounded(*[x.to(dtype).float()] * 3, need_weights=False)[0]
    assert judge.check(right.to(dtype)).correct
    assert not judge.check((right * 1.02).to(dtype)).correct


def test_terms_of_sums_that_are_no_product_of_matrices_stay_in_float32():
    x = torch.randn(20, 24).bfloat16()
    judge = Judge(lambda x: (x.float().exp() * x.float().sin()).sum(-1), (x,))
    assert judge.check((x.double().exp() * x.double().sin()).sum(-1).float()).correct
    assert not judge.check((x.float().exp().bfloat16().float() * x.float().sin()).sum(-1)).correct


def test_an_argument_in_float32_is_a_factor_as_it_is():
    x, w = torch.randn(20, 24).bfloat16(), torch.randn(24, 12)
    judge = Judge(lambda x, w: (x.float() @ w).bfloat16(), (x, w))
    assert judge.check((x.double() @ w.double()).bfloat16()).correct
    assert not judge.check((x.float() @ w.bfloat16().float()).bfloat16()).correct


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(3))
def test_gradients_through_attention_are_those_of_float64_and_may_be_rounded_otherwise(dtype, seed):
    torch.manual_seed(seed)
    given = [torch.randn(2, 3, 40, 16, dtype=dtype) for _ in range(3)] + [torch.randn(16, 16, dtype=dtype) / 4]
    function = WithGradients(attention_block, outputs=True)
    judge = Judge(function, given)
    exact = function(*(x.double() for x in given))
    in_float32 = [y.to(dtype) for y in function(*(x.float() for x in given))]
    for outputs in (function(*given), [y.to(dtype) for y in exact], in_float32):
        result = judge.check(tuple(outputs))
        assert result.correct, result.reason
        assert result.max_abs_err < 400 * torch.finfo(dtype).eps  # on one CPU 12 times as much as on another
    exact[2][0, 1, 20, 3] += 0.2
    assert not judge.check(tuple(y.to(dtype) for y in exact)).correct


@pytest.mark.parametrize("seed", range(4))
def test_an_element_that_relu_cuts_off_may_be_one_that_another_order_of_sums_does_not(seed):
    def product(x, w):
        return torch.relu(x @ w) / 2

    torch.manual_seed(seed)
    x, w = torch.randn(128, 128, dtype=torch.float16), torch.randn(128, 128, dtype=torch.float16) / 16
    judge = Judge(product, (x, w))
    parts = torch.zeros(128, 128, dtype=torch.float16)
    for first in range(0, 128, 16):  # partial sums are rounded, as torch allows for float16
        parts += x[:, first : first + 16] @ w[first : first + 16]
    right = torch.relu(parts) / 2
    assert judge.check(right).err_over_tol < 2  # at most 1 on each CPU that was tried; 384 without a limit of its own
    cut = (product(x.double(), w.double()) == 0).nonzero()[seed]
    right[tuple(cut)] = 0.01
    assert judge.check(right).err_over_tol > 10


def relu_and_bias(y, bias):
    return torch.relu(y) + bias


def clamp_and_scale(y, bias):
    return -2 * torch.clamp(y, -0.1, 0.2) + bias


def pool_and_bias(y, bias):
    return F.max_pool2d(F.relu6(y), 2) + bias


@pytest.mark.parametrize(
    ("cut", "seed"),
    [(relu_and_bias, 2), (relu_and_bias, 11), (clamp_and_scale, 14), (pool_and_bias, 11), (pool_and_bias, 3)],
)
def test_what_a_function_cuts_off_before_a_bias_may_differ_too(cut, seed):
    def function(x, weight, bias):
        return cut(F.conv2d(x, weight), bias)

    torch.manual_seed(seed)
    given = torch.rand(1, 64, 28, 28), (torch.rand(32, 64, 3, 3) - 0.5) / 12, torch.randn(32, 1, 1)
    judge = Judge(function, given, tf32=True)
    for half in (0, 0x1000):  # hardware cuts off the 13 last bits of a factor, or rounds
        factors = [(((x.view(torch.int32) + half) >> 13) << 13).view(torch.float32) for x in given[:2]]
        result = judge.check(function(*factors, given[2]))
        assert result.correct, result.reason  # of ten, one was 70 times what was allowed
    wrong = function(*given)
    wrong[0, 1] += 0.01
    assert not judge.check(wrong).correct


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("weight", "stride", "groups"), [((12, 8, 3, 5, 3), 1, 1), ((12, 4, 5, 5, 5), 2, 1), ((12, 4, 3, 5, 7), 1, 4)]
)
def test_a_transposed_convolution_may_add_its_taps_in_its_own_type(weight, stride, groups, dtype):
    def function(x, w):
        return F.conv_transpose3d(x, w, stride=stride, groups=groups)

    torch.manual_seed(0)
    x, w = torch.randn(2, 12, 6, 8, 8, dtype=dtype), torch.randn(weight, dtype=dtype) / 8
    judge = Judge(function, (x, w))
    with torch.backends.mkldnn.flags(enabled=False):  # torch's own code adds each tap to the result
        scattered = judge.check(function(x, w))
    assert scattered.correct, scattered.reason
    wrong = function(x, w)
    wrong[0, 0] *= 1.03
    assert not judge.check(wrong).correct


def with_mask(x):
    return torch.cat([1000 * x.sum(-1, keepdim=True).expand(-1, 4), (x > 0).to(x.dtype)], -1)


def with_experts(z):
    chosen, places = z.topk(2)
    share = torch.zeros_like(z).scatter(-1, places, chosen.softmax(-1))
    return torch.cat([1000 * z.logsumexp(-1, keepdim=True), share], -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("function", "exact", "wrong"), [(with_mask, 4, 1.0), (with_experts, 1, 0.02)])
def test_exact_zeros_beside_noisy_columns_stay_exact(function, exact, wrong, dtype):
    torch.manual_seed(0)
    x = torch.randn(32, 64, dtype=dtype)
    outputs = function(x)
    judge = Judge(function, (x,))
    assert judge.check(outputs).correct
    part = outputs[:, exact:]
    part[part == 0] = wrong
    assert not judge.check(outputs).correct
