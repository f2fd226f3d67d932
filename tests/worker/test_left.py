"""Which processes count as left running by a case."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

LEFT = """
import os, signal, subprocess, time
from runner import worker

def start(*words):
    return subprocess.Popen([*words, "sleep", "1000"])

ended = subprocess.Popen(["true"])
os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # and is not waited for
forked = os.fork() or signal.pause()
plain, other_session = start(), start("setsid")
names = {forked: "forked", plain.pid: "plain", other_session.pid: "session"}
for _ in range(100):  # a process that is just being replaced by its program has no command line
    if len(found := worker.left_running()) == 3:
        break
    time.sleep(0.05)
print(sorted(names.get(pid, pid) for pid in found))
for pid in names:
    os.kill(pid, signal.SIGKILL)
"""

POOL = """
import os, torch
from runner.device import processes
from runner import worker

from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile

config.compile_threads = 2
pool = AsyncCompile.process_pool()
assert pool.submit(os.getpid).result() != os.getpid()
print(len(processes.children(os.getpid())) > 0, worker.left_running())
"""


@pytest.fixture
def output(tmp_path):
    def run(source: str) -> str:
        program = tmp_path / "program.py"  # a file, so that its process is forked
        program.write_text(source)
        done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def test_a_child_counts_unless_it_has_ended(output):
    assert output(LEFT) == "['forked', 'plain', 'session']"


@pytest.mark.long
def test_the_pool_in_which_inductor_compiles_does_not_count(output):
    assert output(POOL) == "True []"
