"""nearest: a check by distances, which takes any of several nearest centres, and no other."""

from __future__ import annotations

import random

import pytest
import torch

SIZES = {"n": 300, "m": 200, "d": 64}


@pytest.fixture
def drawn(make):
    def go(dtype="float32", change=lambda a, b: (a, b), **fields):
        workload, inputs = make("nearest", dtype=dtype, **SIZES | fields)
        a, b = change(*inputs)
        exact = (a.double()[:, None] - b.double()).square().sum(-1).sqrt()
        return workload.expected_outputs((a, b)), exact, a, b

    return go


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_nearest_centre_is_right_and_the_second_nearest_is_wrong(drawn, dtype):
    judge, exact, _, _ = drawn(dtype)
    first, second = exact.topk(2, largest=False).indices.unbind(-1)
    assert judge.check((first,)).err_over_tol == pytest.approx(0, abs=1e-6)
    found = judge.check((second,))
    assert not found.correct
    assert "distance of y" in found.reason
    assert "by distances in float64" in found.tolerance[0]
    one = first.clone()
    one[7] = second[7]
    assert judge.check((one,)).reason.startswith("distance of y: 1 of 300 elements wrong, worst at (7,)")


def test_either_of_equal_centres_is_right(drawn):
    judge, exact, _, b = drawn(change=lambda a, b: (a, torch.cat([b[:100], b[:100]])))
    assert len(b) == 200
    assert judge.check((exact.argmin(-1),)).correct
    assert judge.check((199 - exact.flip(-1).argmin(-1),)).correct


@pytest.mark.parametrize("shift", [0.0, 300.0])
def test_the_expanded_square_in_float32_is_right_also_where_it_cancels(drawn, shift):
    judge, _, a, b = drawn(change=lambda a, b: (a + shift, b + shift))
    assert judge.check(((b.square().sum(-1) - 2 * (a @ b.mT)).argmin(-1),)).correct
    assert judge.check((torch.cdist(a, b).argmin(-1),)).correct


def test_tf32_is_right_only_if_allowed(make):
    for allowed in (True, False):
        workload, (a, b) = make("nearest", dtype="float32", tf32=allowed, n=100, m=100, d=64)
        cut = [(x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (a, b)]
        y = (b.square().sum(-1) - 2 * (cut[0] @ cut[1].mT)).argmin(-1)
        assert workload.expected_outputs((a, b)).check((y,)).correct is allowed


@pytest.mark.parametrize("kind", [("float32", False), ("float32", True), ("float16", False), ("bfloat16", False)])
@pytest.mark.parametrize("seed", range(4))
def test_a_centre_that_is_never_looked_at_is_missed(drawn, kind, seed):
    """The last one too, where a tile of one centre may be left out; and with TF32, which cannot tell twins."""
    chance, (dtype, tf32) = random.Random(seed), kind
    sizes = {"n": chance.choice([20, 257]), "m": chance.choice([2, 17, 65, 200]), "d": chance.choice([3, 31, 64])}
    judge, exact, _, _ = drawn(dtype, tf32=tf32, **sizes)
    most = exact.shape[1]
    assert judge.check((exact.argmin(-1),)).correct
    assert not judge.check((exact.topk(2, largest=False).indices[:, 1],)).correct
    assert not judge.check((torch.zeros(len(exact), dtype=torch.int64),)).correct
    half = -(-most // 2)
    for seen in (most - 1, half):
        assert not judge.check((exact[:, :seen].argmin(-1),)).correct
    assert not judge.check((most - half + exact[:, -half:].argmin(-1),)).correct


def test_distances_rounded_to_bfloat16_are_wrong(drawn):
    judge, exact, _, _ = drawn("bfloat16")
    assert not judge.check((exact.bfloat16().argmin(-1),)).correct


def test_what_is_no_index_is_wrong(drawn):
    judge, exact, _, _ = drawn()
    y = exact.argmin(-1)
    for outputs, why in (
        ((y.int(),), "dtype"),
        ((y[:-1],), "shape"),
        ((y, y), "2 outputs"),
        ((y - 1000,), "no index below 200"),
        ((y + 200,), "no index below 200"),
    ):
        found = judge.check_tensors(outputs)
        assert not found.correct
        assert not found.compared
        assert why in found.reason


def test_the_reference_is_the_same_in_blocks(make, monkeypatch):
    from runner.models import nearest

    workload, inputs = make("nearest", dtype="float32", **SIZES)
    (whole,) = workload.reference(*inputs)
    monkeypatch.setattr(nearest, "TOGETHER", 1000)
    (blocks,) = workload.reference(*inputs)
    assert torch.allclose(whole.value, blocks.value)
    assert torch.allclose(whole.atol, blocks.atol)


def test_flops_and_bytes(make):
    workload, _ = make("nearest", dtype="bfloat16", n=2, m=3, d=5)
    assert (workload.flops(), workload.bytes_min()) == (60, 2 * (10 + 15) + 8 * 2)
