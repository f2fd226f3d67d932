"""A reference that communicates has an automatic tolerance, and no rank waits for another one while it is judged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

import pytest
import torch
import torch.distributed as dist

from runner.device.exchange import MeetingPlace

LIMIT_S = 120
Verdicts = Mapping[str, bool]


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    dist.all_reduce(y)
    return y


def gathered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The same sum, by another collective."""
    y = x @ w
    parts = [torch.empty_like(y) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, y)
    return torch.stack(parts).sum(0)


def only_on_rank_0(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Zeros on rank 1, where zeros and a constant pass."""
    return gathered(x, w) * (dist.get_rank() == 0)


def judge(place: str, rank: int, device: str) -> None:
    """Print what a judge of each reference says to right and wrong outputs of this rank."""
    from runner.subject.tolerance import Judge
    from runner.timing import ranks

    ranks.join(place, rank, 2, device)
    verdicts: dict[str, Verdicts] = {}
    for dtype in (torch.float32, torch.bfloat16):
        generator = torch.Generator().manual_seed(rank)
        x, w = (torch.randn(48, 48, generator=generator).to(device, dtype) for _ in range(2))
        of_all, alone = product(x, w), x @ w
        outputs = {"all_reduce": of_all, "all_gather": gathered(x, w), "of this rank": alone}
        outputs |= {"1 % too large on rank 1": of_all * 1.01 if rank else of_all}
        for reference in (product, gathered):
            judged = Judge(reference, (x, w))
            correct = {name: judged.check(y).correct and not judged.unproven for name, y in outputs.items()}
            verdicts[f"{reference.__name__} {dtype}"] = correct
    judged = Judge(only_on_rank_0, (x, w))
    verdicts["unproven"] = {judged.unproven: judged.check(only_on_rank_0(x, w)).correct}
    if device == "cpu":  # as NCCL, which has no work for a call that waits; here it adds nothing either
        library = torch.library.Library("c10d", "IMPL")
        library.impl("allreduce_", lambda tensors, *rest: (tensors, dist.Work.boxed(None)), "CPU")
        verdicts["no work"] = {"its own": Judge(product, (x, w)).check(x @ w).correct}
    print(json.dumps(verdicts), flush=True)
    ranks.current.meet()


TWO_GPUS = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU for each rank")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=TWO_GPUS)])
def test_a_reference_that_communicates_has_an_automatic_tolerance(device):
    place = MeetingPlace(2)
    command = [sys.executable, __file__, place.path]
    ranks = [subprocess.Popen([*command, str(rank), device], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        printed = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, lines in enumerate(printed):
        verdicts: dict[str, Verdicts] = json.loads(lines.splitlines()[-1])
        assert verdicts.pop("no work", {"its own": True}) == {"its own": True}
        assert len(verdicts) == 5
        (unproven,) = verdicts.pop("unproven")
        assert unproven.startswith("rank 1: zeros and a constant would pass")
        for case, correct in verdicts.items():
            honest = {"all_reduce", "all_gather"} | ({"1 % too large on rank 1"} if rank == 0 else set())
            assert {name for name, right in correct.items() if right} == honest, (rank, case, correct)


if __name__ == "__main__":
    judge(sys.argv[1], int(sys.argv[2]), sys.argv[3])
