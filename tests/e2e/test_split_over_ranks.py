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
    result = run("workload=ddp_step", *sizes, "impl=overlap,file", file, "measure=[benchmark,parts]", *QUICK, "-m")
    assert result.statuses() == {"overlap": "ok", "file": "wrong"}, result.out + result.err
    right, wrong = result.rows()
    assert right["metrics"]["rank_spread_us"] >= 0
    assert right["metrics"]["backward_us"] > 0 < right["metrics"]["optimizer_step_us"]
    assert "grad of w1" in wrong["reason"]


STEP = """
import torch
from torch.nn.parallel import DistributedDataParallel


def inputs(n=8, rank=0):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    torch.manual_seed(rank)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(n, 16)


def reference(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def unsynced(model, optimizer, x):
    with model.no_sync():
        reference(model, optimizer, x)
"""


def test_a_step_of_distributed_data_parallel_must_reduce_its_gradients_in_every_type(run, tmp_path):
    (tmp_path / "step.py").write_text(STEP)
    case = [f"workload={tmp_path}/step.py", "workload.dtype=bfloat16", "impl=reference,unsynced"]
    result = run(*case, "workload.pass=fwd,bwd", *QUICK, "-m")
    rows = {(row["case"]["workload"]["pass"], row["case"]["impl"]["name"]): row for row in result.rows()}
    statuses = {case: row["status"] for case, row in rows.items()}
    refused = {("bwd", "reference"): "unsupported", ("bwd", "unsynced"): "unsupported"}
    assert statuses == {("fwd", "reference"): "ok", ("fwd", "unsynced"): "wrong"} | refused, result.out + result.err
    assert "model.module.weight" in rows["fwd", "unsynced"]["reason"]
    assert "backward()" in rows["bwd", "reference"]["reason"]
