"""The zygote: it kills what a dead worker leaves behind, and workers die with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from runner.execute import CannotStart, local, spawn, worker_process
from runner.execute.spawn import ORPHANED, Gone, Zygote
from runner.execute.worker_process import WorkerProcess

ORPHANS = """
import os, subprocess, sys
from runner.device import tools
from runner.execute import zygote

def start(**more):
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=os.environ | more)

worker, left, of_nobody = start(), start(), start(**{tools.MARK: "1-x"})
agent = start(**{tools.MARK: f"{worker.pid}-x"})
zygote._kill_orphans({worker.pid})
print([one.poll() is None for one in (worker, agent, left, of_nobody)])
zygote._kill_orphans(set())
print([one.poll() is None for one in (worker, agent)])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_tool_that_has_left_its_parent_is_killed_with_its_worker():
    done = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["[True, True, False, False]", "[False, False]"], done.stderr


UNKILLABLE = """
import subprocess, sys
from runner.device import processes
from runner.execute import zygote

sleeper = subprocess.Popen(["sleep", "1000"])
kill, processes.kill_tree = processes.kill_tree, lambda pid: None
print(zygote._end(sleeper.pid, 0.1))
processes.kill_tree = kill
print(zygote._end(sleeper.pid, 60.0))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd_open")
def test_the_wait_for_a_process_that_cannot_be_killed_ends():
    done = subprocess.run([sys.executable, "-c", UNKILLABLE], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["None", "-9"], done.stderr


def test_a_gpu_whose_worker_does_not_end_is_out_of_service(launch_user, monkeypatch):
    monkeypatch.setattr(local, "SOURCES", (Zygote,))
    monkeypatch.setattr(Zygote, "reap", lambda self, pid, limit_s: None)
    rows = []
    with pytest.raises(CannotStart, match="a killed worker has not ended and holds it"):
        launch_user("import os\ndef dies(x): os.abort()", ("dies", 64), ("dies", 65), on_row=lambda: rows.append(1))
    assert len(rows) == 1


@pytest.fixture
def source(tmp_path):
    begun = Zygote()
    begun.begin(tmp_path / "log", [], [], 60.0)
    yield begun
    begun.close()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such process")
def test_a_zygote_that_does_not_answer_is_killed(source, tmp_path, monkeypatch, gone):
    worker = WorkerProcess(source, tmp_path / "log", (), measures=False)
    os.kill(source.process.pid, signal.SIGSTOP)
    monkeypatch.setattr(spawn, "REAP_S", 0.1)
    assert worker.end() == ORPHANED
    assert gone(source.process.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such process")
def test_a_zygote_that_does_not_start_is_killed(tmp_path, gone):
    source = Zygote()
    os.kill(source.process.pid, signal.SIGSTOP)
    source.begin(tmp_path / "log", [], [], 0.1)
    with pytest.raises(Gone, match=ORPHANED):
        WorkerProcess(source, tmp_path / "log", (), measures=False)
    assert gone(source.process.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such process")
def test_the_end_of_a_zygote_that_still_imports_is_not_waited_for(monkeypatch, gone):
    source, limits = Zygote(), []
    os.kill(source.process.pid, signal.SIGSTOP)
    wait = source.process.wait
    monkeypatch.setattr(source.process, "wait", lambda limit=None: limits.append(limit) or wait(limit))
    source.close()
    assert limits == [0, None]
    assert gone(source.process.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such process")
def test_workers_die_with_the_zygote_and_it_forks_no_more(source, tmp_path, gone):
    worker = WorkerProcess(source, tmp_path / "log", (), measures=False)
    os.kill(source.process.pid, signal.SIGKILL)
    assert gone(worker.pid)
    assert not worker.alive
    worker.kill()
    assert worker.end() == ORPHANED
    with pytest.raises(Gone, match="was killed"):
        WorkerProcess(source, tmp_path / "log", (), measures=False)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such process")
def test_a_worker_that_takes_no_message_is_killed(source, tmp_path, monkeypatch, gone):
    worker = WorkerProcess(source, tmp_path / "log", (), measures=False)
    worker.pause(True)
    monkeypatch.setattr(worker_process, "SEND_S", 0.2)
    with pytest.raises(Gone, match=r"^the worker read no message for 0.2 s and was killed$"):
        worker.send({"recall": {"x" * 2**22: 1.0}})  # more than a socket holds
    assert gone(worker.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such process")
def test_a_stopped_worker_dies_with_the_zygote(source, tmp_path, gone):
    worker = WorkerProcess(source, tmp_path / "log", (), measures=False)
    worker.pause(True)  # like a spare worker while the other one measures
    os.kill(source.process.pid, signal.SIGKILL)
    assert gone(worker.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such process")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(one, marks=pytest.mark.long) for one in (signal.SIGTERM, signal.SIGHUP))]
)
def test_a_signal_to_all_processes_of_a_run_does_not_end_the_zygote(source, tmp_path, number):
    worker = WorkerProcess(source, tmp_path / "log", (), measures=False)
    os.kill(source.process.pid, number)
    assert source.reap(worker.pid, 60.0) == -signal.SIGKILL
    assert WorkerProcess(source, tmp_path / "log", (), measures=False).alive


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such process")
def test_a_log_that_workers_share_is_cut_after_the_marks_of_all(source, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_process, "MOST_LOG_BYTES", 10_000)
    log = tmp_path / "log"
    first, second = (WorkerProcess(source, log, (), measures=False) for _ in range(2))
    first.send({"recall": {}})
    for text, worker in (("." * 20_000, second), ("second\n", None)):
        with open(log, "a") as file:  # as either worker prints
            file.write(text)
        if worker:
            worker.send({"recall": {}})
    before = [worker.printed() for worker in (first, second)]
    first.cut_log()
    assert before == [worker.printed() for worker in (first, second)]
    assert before[1] == "second\n"
    with open(log, "a") as file:
        file.write("-" * 20_000)
    before = [worker.printed() for worker in (first, second)]
    first.cut_log()
    assert before == [worker.printed() for worker in (first, second)]
    assert before[1].startswith("second\n---")
    assert log.stat().st_size < 20_000
