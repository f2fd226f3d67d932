"""What a dead worker leaves behind is ended, and the tools of others are not."""

from __future__ import annotations

import subprocess
import sys

import pytest

ORPHANS = """
import os, subprocess, sys
from runner import tool
from runner.launch import zygote

def start(**more):
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=os.environ | more)

worker, left, of_nobody = start(), start(), start(**{tool.MARK: "1-x"})
agent = start(**{tool.MARK: f"{worker.pid}-x"})
zygote._kill_orphans({worker.pid})
print([one.poll() is None for one in (worker, agent, left, of_nobody)])
zygote._kill_orphans(set())
print([one.poll() is None for one in (worker, agent)])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_tool_that_has_left_its_parent_goes_with_the_worker_that_runs_it():
    done = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["[True, True, False, False]", "[False, False]"], done.stderr
