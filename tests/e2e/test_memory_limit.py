"""A run in a cgroup whose memory is limited, as under Slurm or in a container: the kernel itself ends a case."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from runner.store import journal

LIMIT_BYTES = 1536 * 2**20
FIELDS = {  # in which the limits are written, of cgroups of version 1 and 2; swap, where there is some, is not to help
    "memory.limit_in_bytes": LIMIT_BYTES,
    "memory.memsw.limit_in_bytes": LIMIT_BYTES,
    "memory.max": LIMIT_BYTES,
    "memory.swap.max": 0,
}
USER = """
import sys, torch

def eats(held):
    while True: held.append(bytearray(2**26))

def digs(deep):
    sys.setrecursionlimit(10**9)
    return digs([deep])

def user(x):
    {128: eats, 192: digs}.get(x.shape[1], len)([])
    return torch.nn.functional.gelu(x, approximate="tanh")
"""


@pytest.fixture
def cgroup(tmp_path, eventually):
    """The folder of a cgroup within that of this process, whose memory is limited; or a skip."""
    own = re.findall(r"^\d+:(memory|):/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    places = (Path("/sys/fs/cgroup") / kind / path / tmp_path.name for kind, path in own)
    folder = next(filter(limited, places), None)
    if folder is None:
        pytest.skip("no cgroup of one's own can be had here")
    yield folder
    assert eventually(lambda: not (folder / "cgroup.procs").read_text()), "left in the cgroup"
    folder.rmdir()


def limited(folder):
    """Whether ``folder`` could be made a cgroup with a limit."""
    try:
        folder.mkdir()
    except OSError:
        return False
    fields = {folder / name: value for name, value in FIELDS.items() if (folder / name).exists()}
    for field, value in fields.items():
        field.write_text(str(value))
    if not fields:
        folder.rmdir()
    return bool(fields)


@pytest.mark.long
def test_the_kernel_ends_a_case_that_eats_all_memory_and_the_rest_goes_on(command, cgroup, tmp_path):
    (tmp_path / "user.py").write_text(USER)
    grid = ["workload=gelu", "workload.rows=64", "workload.cols=64,128,192,256", "impl=file", "impl.path=user.py:user"]
    words, options = command(*grid, "measure.benchmark.max_s=0.05", "-m")
    done = subprocess.run(
        words,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
        preexec_fn=lambda: (cgroup / "cgroup.procs").write_text("0"),  # 0: whoever writes it
        **options,
    )
    rows = journal.read_rows(next(tmp_path.glob("outputs/*/*")))
    assert [row.status for row in rows] == ["ok", "oom", "oom", "ok"], done.stdout + done.stderr
    assert [row.metrics["attempt"] for row in rows] == [1, 1, 1, 1]
    why = "the machine, or this run's share of it, was out of memory"
    assert {row.reason for row in rows[1:3]} == {f"{why}: the worker was killed by SIGKILL by the kernel"}
