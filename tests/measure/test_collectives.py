"""Figures of the ranks of a call, from time lines made by hand."""

from __future__ import annotations

import pytest

from runner.measure.timeline import ApiCall, Event, collectives
from runner.timing import ranks

NCCL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def call(*work):
    events = [Event(name, "kernel", start, end) for name, start, end in work]
    return ApiCall(Event("call", "span", 0, 1000), work=events)


@pytest.fixture
def rank(monkeypatch):
    """``rank(*calls, others=...)``: the figures of a rank, among others with these times."""

    def figures(*calls, others=()):
        class Two(ranks.Ranks):
            def gather(self, value, what="value"):
                return [value, *others]

        monkeypatch.setattr(ranks, "current", Two())
        return collectives.figures(calls)

    return figures


def test_a_rank_that_waits_in_a_collective_computes_nothing(rank):
    """Two blocks of 100 us, while one of them a block travels for 40 us, and 60 us in which the rank only waits."""
    waiting = call(("flash", 0, 100), (NCCL, 10, 50), (NCCL, 100, 160), ("flash", 160, 260))
    found = rank(waiting, others=[[300.0, 300.0, 50.0, 50.0]])
    assert found["profile_collective_us"] == pytest.approx((100 + 50) / 2)
    assert found["profile_overlap_pct"] == pytest.approx(100 * (40 + 50) / (100 + 50))
    assert found["profile_ranks_idle_pct"] == pytest.approx(100 * (100 + 0) / 2 / 300)  # 60 us in NCCL, 40 us later
    assert found["profile_ranks_idle"] == "rank 0 100 us, rank 1 0 us"


def test_calls_are_averaged(rank):
    found = rank(call(("a", 0, 10)), call(("a", 0, 30)), others=[[20.0, 10.0, 0.0, 0.0]])
    assert found["profile_ranks_idle"] == "rank 0 0 us, rank 1 10 us"
    assert found["profile_overlap_pct"] is None  # no collective ran


@pytest.mark.parametrize("name", [NCCL, "one_shot_all_reduce_kernel<c10::BFloat16>", "Memcpy PtoP (Device -> Device)"])
def test_kernels_of_collectives_are_known_by_their_names(rank, name):
    assert rank(call((name, 0, 10)), others=[[10.0, 0.0, 10.0, 0.0]])["profile_collective_us"] == 10


def test_a_call_on_one_rank_has_no_such_figures(rank):
    assert rank(call(("a", 0, 10))) == {}
