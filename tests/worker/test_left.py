"""What cases have left running is told from what torch and the runner have started."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

LEFT = """
import os, signal, subprocess, sys, time
from runner.device import tools
from runner import worker

def start(*words, **more):
    return subprocess.Popen([*words, "sleep", "1000"], env=os.environ | more)

ended = subprocess.Popen(["true"])
os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # and is not waited for
forked = os.fork() or signal.pause()
plain, other_session = start(), start("setsid")
by_the_runner = start(**{tools.MARK: f"{os.getpid()}-x"})
names = {forked: "forked", plain.pid: "plain", other_session.pid: "session", by_the_runner.pid: "the runner's"}
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


def said(source: str, *words: str) -> str:
    command = [sys.executable, "-c", source, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("words", [(), ("torch._inductor.compile_worker",)])  # as modules to preload are named
def test_a_child_counts_unless_it_has_ended_or_is_a_tool(words):
    assert said(LEFT, *words) == "['forked', 'plain', 'session']"


def test_the_pool_in_which_inductor_compiles_does_not_count():
    assert said(POOL) == "True []"


THREADS = """
import threading, time
from runner import worker

stop = threading.Event()
def spin():
    while not stop.is_set(): pass
def seen():
    return any(worker.busy_threads() for _ in range(100))

waiting, working = (threading.Thread(target=what, daemon=True) for what in (stop.wait, spin))
found = [seen()]
waiting.start()
found.append(seen())
working.start()
found.append(seen())
stop.set()
working.join()
print(*found, seen())
"""


def test_a_thread_that_works_is_seen_and_one_that_waits_is_not():
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["False", "False", "True", "False"], done.stderr
