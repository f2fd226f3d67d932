"""``bench`` in a program of several ranks, as torchrun starts them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from runner import bench
from runner.device import processes

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from runner import bench

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
torch.set_num_threads(1)

def summed(x):
    y = x.clone()
    dist.all_reduce(y)
    return y

def wrong(x):
    return summed(x) + (rank == 1)

functions = {"summed": summed, "again": lambda x: summed(x), "wrong": wrong}
compared = bench(functions, torch.ones(100), check=summed, atol=0, rtol=0, ranks=True, max_s=0.05)
print([line.timing.us for line in compared][:2], compared["wrong"].timing.reason, repr(compared).splitlines()[1])

calls = 0
def late(x):
    global calls
    calls += 1
    if rank == 1 and calls == 30:
        raise ValueError("too late")
    return x * 2

for longest in (1.0, 1.0 + rank):  # long enough for 30 calls beside other processes
    try:
        bench(late, torch.ones(100), ranks=True, max_s=longest)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")

try:
    bench(dict(sorted(functions.items(), reverse=rank == 1)), torch.ones(100), ranks=True)
except ValueError as error:
    print(f"{type(error).__name__}: {error}")
"""


def test_all_ranks_get_the_same_times_and_know_what_fails_on_one(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py")]
    environment = {**processes.environment(), "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    running = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(2)
    ]
    (first, *of_0), (second, *of_1) = [process.communicate(timeout=100)[0].splitlines() for process in running]
    assert first == second
    assert "] rank 1: " in first
    assert "ranks=2" in first
    left, differ = (
        "HasLeft: rank 1 has raised an exception",
        "ValueError: the ranks ask for different functions or settings",
    )
    assert (of_0[0][: len(left)], of_1[0]) == (left, "ValueError: too late")
    assert [line[: len(differ)] for line in (*of_0[1:], *of_1[1:])] == [differ] * 4


def test_without_a_group_it_says_what_to_do():
    with pytest.raises(RuntimeError, match=r"^torch\.distributed has no group here: start the program by torchrun"):
        bench(len, [1], ranks=True)
