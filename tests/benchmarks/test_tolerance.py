"""The study of automatic tolerances: its variants are what their names say, and its page has the bars."""

from __future__ import annotations

import pytest
import torch

from benchmarks.subject.tasks import TASKS
from benchmarks.subject.tolerance import DTYPES, judge_task, report
from benchmarks.subject.variants import dropped, in_order, lowered, tf32


def test_it_has_sixty_tasks():
    assert len(TASKS) >= 60


@pytest.mark.parametrize("split", [True, False])
def test_sums_in_another_order_are_the_same_sums(split):
    x, w = torch.randn(20, 30), torch.randn(30, 10)
    with in_order(split=split):
        results = x @ w, x.sum(-1), x.mean(0, keepdim=True), x.sum()
    for result, expected in zip(results, (x @ w, x.sum(-1), x.mean(0, keepdim=True), x.sum()), strict=True):
        assert torch.allclose(result, expected, atol=1e-4)
    assert not torch.equal(results[0], x @ w) or not torch.equal(results[1], x.sum(-1))


@pytest.mark.parametrize(("mode", "error"), [(tf32(), 1e-3), (dropped(), 0.1), (lowered(torch.bfloat16), 1e-2)])
def test_wrong_variants_are_wrong(mode, error):
    x, w = torch.rand(20, 300), torch.rand(300, 10)
    with mode:
        y = x @ w
    assert 1e-6 < float(((y - x @ w) / (x @ w)).abs().max()) < error


def test_the_page_of_one_task():
    judged = [judge_task("softmax", TASKS["softmax"], dtype, 1, quick=True) for dtype in DTYPES]
    verdicts = [verdict for _, some in judged for verdict in some]
    assert all(verdict.right for verdict in verdicts if verdict.honest)
    assert not any(verdict.right for verdict in verdicts if verdict.kind in ("zeros", "the mean", "dim 0"))
    page = report([case for case, _ in judged], verdicts, 1.0)
    assert page.count("PASS") + page.count("MISS") == 3
    assert "| all 1 % |" in page
