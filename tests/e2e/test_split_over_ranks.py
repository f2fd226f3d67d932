"""A computation that several ranks share, as a user types it: on two processes of a CPU."""

from __future__ import annotations

QUICK = ["measure.benchmark.samples=20", "measure.benchmark.max_s=0.02", "measure.benchmark.warmup_s=0", "device=cpu"]
LOCAL = """
import torch
import torch.nn.functional as F


def local(x, *params, activation):
    h = x
    for w, b in zip(params[::2], params[1::2]):
        h = F.gelu(F.linear(h, w, b))
    return torch.autograd.grad(h.mean(), params)
"""


def test_gradients_that_are_not_averaged_are_wrong(run, tmp_path):
    (tmp_path / "mine.py").write_text(LOCAL)
    sizes = ["workload.ranks=2", "workload.dim=16", "workload.layers=2", "workload.batch=8"]
    file = f"impl.path={tmp_path}/mine.py:local"
    result = run("workload=ddp_step", *sizes, "impl=overlap,file", file, *QUICK, "-m")
    assert result.statuses() == {"overlap": "ok", "file": "wrong"}, result.out + result.err
    right, wrong = result.rows()
    assert right["metrics"]["rank_spread_us"] >= 0
    assert "grad of w1" in wrong["reason"]
