"""Cases that crash, hang or damage their process: each has one row, the other cases are right, no process is left."""

from __future__ import annotations

import os
import select
import signal
import time
import tracemalloc
from pathlib import Path

import pytest

from runner.execute import CannotStart, Notice, local, worker_process
from runner.execute.spawn import Gone, Spawner, Zygote

SLEEP = f"5000.{os.getpid()}"  # seconds: which process is one of ours
USER = """
import ctypes, faulthandler, json, os, signal, stat, subprocess, sys, threading, time, torch

def right(x): return torch.nn.functional.gelu(x, approximate="tanh")

def segfault(x): print("about to read address 0", flush=True); ctypes.string_at(0)
def abort(x):
    os.write(2, b"terminate called after throwing an instance of 'std::runtime_error'\\n  what():  no such size\\n")
    os.abort()
def leaves(x): os._exit(0)
def stops(x): os.kill(os.getpid(), signal.SIGSTOP); return right(x)
def loops_in_c(x):
    list(iter(int, 1))
def sleeps_in_c(x): ctypes.CDLL(None).sleep(1000)
def out_of_memory(x): raise MemoryError("no more")
def raises(x): raise ValueError("wrong shape, says the kernel")
def wrong(x): return right(x) + 1
def exits(x): sys.exit(3)
def interrupts(x): raise KeyboardInterrupt
def dies_when_idle(x):
    if not hasattr(torch, "timer"):
        torch.timer = threading.Timer(float(os.environ.get("IDLE_S", "1")), os._exit, [0])
    return right(x)
def has_children(x):
    for group in (False, True):
        subprocess.Popen(["sleep", SLEEP], start_new_session=group)
    ctypes.string_at(0)
def leaves_a_child(x):
    if not hasattr(torch, "left"): torch.left = subprocess.Popen(["sleep", SLEEP])
    return right(x)
def leaves_a_session(x):
    if not hasattr(torch, "left_too"): torch.left_too = subprocess.Popen(["sleep", SLEEP], start_new_session=True)
    return right(x)
def hurt_by_others(x):
    if hasattr(torch, "spoilt"): os.abort()
    return right(x)
def spoils_others(x):
    torch.spoilt = True
    return right(x)
def is_killed(x): os.kill(os.getpid(), signal.SIGKILL)
def divides_by_zero(x): os.kill(os.getpid(), signal.SIGFPE)
def reads_past_the_end_of_a_file(x):
    import mmap, tempfile
    with tempfile.TemporaryFile() as file:
        file.truncate(2**16)
        mapped = mmap.mmap(file.fileno(), 2**16)
        file.truncate(0)
        mapped[2**15]
def deadlocks(x):
    lock = threading.Lock(); lock.acquire(); lock.acquire()
def raises_a_key(x): raise ValueError("the key is " + os.environ["SOME_API_KEY"])
def dies_of_a_key(x):
    os.write(2, b"the key is " + os.environb[b"SOME_API_KEY"])
    os.abort()
def prints(x):
    os.write(1, b"from C: first\\n" + b"." * 100_000 + b"from C: last\\n")
    os.kill(os.getpid(), signal.SIGKILL)  # no stacks behind it
def prints_and_goes_on(x): os.write(1, b"." * 1000); return right(x)
def prints_a_gigabyte(x):
    os.ftruncate(1, 2**30)
    os.abort()
def to_sockets(text):
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode): os.write(descriptor, text)
        except OSError: pass
def sends_what_is_no_message(x): to_sockets(b"no message\\n"); return right(x)
def sends_what_is_no_object(x): to_sockets(b"7\\n"); return right(x)
def sends_an_empty_object(x): to_sockets(b"{}\\n"); return right(x)
def enters_phases_for_ever(x):
    while True: to_sockets(b'{"phase": "build"}\\n')
def sends_no_end(x):
    while True: to_sockets(b"7" * 2**20)
def nests(x): to_sockets(b"[" * 10**6 + b"\\n"); return right(x)
def sends_half_a_message(x): to_sockets(b'{"row": '); time.sleep(1000)
def dies_amid_a_message_and_leaves_a_child(x):
    if os.fork() == 0: time.sleep(1000)
    to_sockets(b'{"row": '); os.abort()
def says_much(x): raise ValueError(os.fsdecode(b"caf\\xe9 ") + "x" * 10**7)
def closes_what_it_prints_to(x): sys.stdout.close(); return right(x)
def ends_when_told(x):
    def wait():
        while not os.path.exists(TOLD): time.sleep(0.01)
        os._exit(0)
    with open(PID, "w") as file: file.write(str(os.getpid()))
    threading.Thread(target=wait, daemon=True).start()
    return right(x)
"""
USER += f"SLEEP = {SLEEP!r}\n"


@pytest.fixture
def grid(launch_user):
    """Run a grid of the functions above, each at a size of its own; its rows by function."""

    def go(*names, **limits):
        events = launch_user(USER, *[(name, 64 + place) for place, name in enumerate(names)], **limits)
        return {Path(e.case.impl.fields["path"]).name.partition(":")[2]: e for e in events if hasattr(e, "status")}

    return go


def sleepers() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path.parent.name] if SLEEP.encode() in path.read_bytes() else []
        except OSError:
            continue
    return found


def test_each_way_to_fail_has_its_status_and_the_next_case_is_right(grid):
    names = ["segfault", "abort", "leaves", "exits", "interrupts", "out_of_memory", "raises", "wrong", "right"]
    rows = grid(*names)
    assert {name: row.status for name, row in rows.items()} == {
        "segfault": "crashed",
        "abort": "crashed",
        "leaves": "crashed",
        "exits": "crashed",
        "interrupts": "error",
        "out_of_memory": "oom",
        "raises": "error",
        "wrong": "wrong",
        "right": "ok",
    }
    assert rows["segfault"].reason == "the worker was killed by SIGSEGV in phase build"
    assert rows["abort"].reason == "the worker was killed by SIGABRT in phase build: no such size"
    assert rows["leaves"].reason == "the worker exited with code 0 in phase build"
    assert rows["exits"].reason == "the worker exited with code 3 in phase build"
    assert rows["interrupts"].reason == "KeyboardInterrupt"
    assert "about to read address 0" in rows["segfault"].detail
    assert "string_at" in rows["segfault"].detail, "faulthandler's stack"


@pytest.mark.parametrize(
    "name",
    [
        "loops_in_c",
        "stops",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("sleeps_in_c", "deadlocks")),
    ],
)
def test_a_case_that_hangs_is_killed_at_its_limit(grid, name):
    started = time.monotonic()
    rows = grid(name, "right", build_limit_s=2)
    assert (rows[name].status, rows[name].phase, rows["right"].status) == ("timeout", "build", "ok")
    assert "raise launcher.build_limit_s if it needs longer" in rows[name].reason
    assert time.monotonic() - started < 60
    if name != "stops":  # a stopped process prints nothing
        assert f"in {name}" in rows[name].detail, "its stack at the limit"


def test_signals_of_other_kinds_are_named(grid):
    rows = grid("is_killed", "divides_by_zero", "reads_past_the_end_of_a_file", "right")
    said = {name: (row.status, row.reason.partition(" in phase")[0]) for name, row in rows.items()}
    assert said == {
        "is_killed": ("crashed", "the worker was killed by SIGKILL"),
        "divides_by_zero": ("crashed", "the worker was killed by SIGFPE"),
        "reads_past_the_end_of_a_file": ("crashed", "the worker was killed by SIGBUS"),
        "right": ("ok", ""),
    }
    assert all(
        row.metrics["wall_s"] > 0 for row in rows.values()
    )  # a killed worker's rows have it too: estimates use it


def test_a_worker_that_the_kernel_kills_for_lack_of_memory_is_oom(grid, monkeypatch):
    taken = iter(range(100))
    monkeypatch.setattr("runner.device.processes.oom_kills", lambda: next(taken))  # one more at each look
    row = grid("is_killed")["is_killed"]
    assert (row.status, row.metrics["attempt"]) == ("oom", 1)
    assert row.reason.startswith("the machine, or this run's share of it, was out of memory: ")
    assert row.reason.endswith("the worker was killed by SIGKILL by the kernel")


def test_the_kernel_would_kill_a_worker_first(launch_user):
    (_, row) = launch_user(
        "def right(x):\n    raise ValueError(open('/proc/self/oom_score_adj').read())", ("right", 64)
    )
    assert row.reason == "ValueError: 800"


def test_a_dead_worker_leaves_no_process_behind(grid):
    assert grid("has_children", "right")["right"].status == "ok"
    assert not sleepers()


def test_processes_that_a_case_leaves_are_killed_before_the_next_size(launch_user):
    running = []
    cases = [("leaves_a_child", 64), ("right", 64), ("right", 65), ("right", 66)]
    events = launch_user(USER, *cases, on_row=lambda: running.append(len(sleepers())))
    assert [event.status for event in events if hasattr(event, "status")] == ["ok"] * 4
    assert running == [1, 1, 0, 0]
    assert [event.text for event in events if isinstance(event, Notice)] == [
        "an earlier case has left processes running: a new worker takes over"
    ]


def test_a_crash_that_may_be_another_cases_fault_is_tried_in_a_fresh_process(grid):
    rows = grid("spoils_others", "hurt_by_others")
    assert rows["hurt_by_others"].status == "ok"
    assert rows["hurt_by_others"].metrics["attempt"] == 2
    assert rows["spoils_others"].metrics["attempt"] == 1


def test_a_crash_in_a_fresh_process_is_not_tried_again(grid):
    assert grid("segfault")["segfault"].metrics["attempt"] == 1


def test_no_key_is_in_a_row(grid, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "abcdef0123")
    rows = grid("raises_a_key", "dies_of_a_key")
    assert rows["raises_a_key"].reason == "ValueError: the key is <redacted>"
    assert "the key is <redacted>" in rows["dies_of_a_key"].detail
    assert "abcdef0123" not in str([row.to_record() for row in rows.values()])


def test_a_row_keeps_the_beginning_and_the_end_of_long_output(grid):
    detail = grid("prints")["prints"].detail
    assert "from C: first" in detail
    assert "from C: last" in detail
    assert len(detail) < 5000


def test_a_row_keeps_a_part_of_a_long_message_in_utf_8(grid):
    row = grid("says_much")["says_much"]
    assert row.reason.startswith(r"ValueError: caf\udce9 xxx")
    assert len(row.reason) < 1100
    assert len(row.detail) < 21_000
    row.detail.encode()


def test_a_gigabyte_of_output_is_not_read_as_a_whole(grid):
    tracemalloc.start()
    try:
        row = grid("prints_a_gigabyte")["prints_a_gigabyte"]
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()
    assert "SIGABRT" in row.reason
    assert "[...]" in row.detail


def test_a_log_that_is_too_long_keeps_of_a_case_what_its_row_has(launch_user, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_process, "MOST_LOG_BYTES", 10_000)
    cases = [("prints_and_goes_on", 64), ("prints", 65), ("right", 66)]
    rows = [event for event in launch_user(USER, *cases) if hasattr(event, "status")]
    assert [row.status for row in rows] == ["ok", "crashed", "ok"]
    log = (tmp_path / "worker.log").read_text()
    assert len(log) < 20_000
    assert 0 < log.index("." * 1000) < log.index("[...]") < log.index(rows[1].detail.strip()[-500:])


@pytest.mark.parametrize("what", ["nothing", "another file"])
def test_a_log_that_is_removed_costs_no_case(launch_user, tmp_path, what):
    def on_row():
        (tmp_path / "worker.log").unlink(missing_ok=True)
        if what == "another file":
            (tmp_path / "worker.log").touch()

    cases = [("prints_and_goes_on", 64), ("right", 65), ("abort", 66), ("right", 67)]
    rows = [event for event in launch_user(USER, *cases, on_row=on_row) if hasattr(event, "status")]
    assert [row.status for row in rows] == ["ok", "ok", "crashed", "ok"]


@pytest.mark.parametrize("name", ["sends_what_is_no_message", "sends_what_is_no_object", "sends_an_empty_object"])
def test_a_case_that_writes_to_the_worker_s_channel_has_crashed(grid, name):
    rows = grid(name, "right")
    assert (rows[name].status, rows["right"].status) == ("crashed", "ok")
    assert rows[name].reason == "the worker sent an invalid message and was killed in phase build"


def test_messages_without_an_end_cost_the_case_that_sent_them(grid, monkeypatch):
    monkeypatch.setattr(worker_process, "MOST_BYTES", 2**23)
    rows = grid("enters_phases_for_ever", "sends_no_end", "nests", "right")
    assert [row.status for row in rows.values()] == ["crashed"] * 3 + ["ok"]


def test_the_parent_does_not_wait_for_the_rest_of_a_message(grid):
    rows = grid("sends_half_a_message", "dies_amid_a_message_and_leaves_a_child", "right", build_limit_s=5)
    assert {name: row.status for name, row in rows.items()} == {
        "sends_half_a_message": "timeout",
        "dies_amid_a_message_and_leaves_a_child": "crashed",
        "right": "ok",
    }


def test_a_case_that_closes_stdout_has_its_row(grid):
    assert grid("closes_what_it_prints_to", "right")["closes_what_it_prints_to"].status == "ok"


def test_a_worker_that_ends_between_two_cases_costs_neither(launch_user, tmp_path):
    told, pid = tmp_path / "told", tmp_path / "pid"

    def on_row():
        if not told.exists():
            ended = os.pidfd_open(int(pid.read_text()))
            told.touch()
            select.select([ended], [], [])
            os.close(ended)

    source = f"TOLD, PID = {str(told)!r}, {str(pid)!r}\n{USER}"
    events = launch_user(source, ("ends_when_told", 64), ("right", 65), ("right", 66), on_row=on_row)
    rows = [event for event in events if hasattr(event, "status")]
    assert [(row.status, row.metrics["attempt"]) for row in rows] == [("ok", 1)] * 3


def kill_zygote(seen=[]):  # noqa: B006  # once
    if not seen:
        seen.append(1)
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            words = path.read_bytes().split(b"\0")
            if b"kernel_runner.execute.zygote" in words and str(os.getpid()).encode() in words:
                os.kill(int(path.parent.name), signal.SIGKILL)
                return
        raise AssertionError("no such process")


def test_what_a_case_has_started_ends_when_the_zygote_is_killed(launch_user, cold, eventually):
    seen = []
    cases = [("leaves_a_child", 64), ("leaves_a_session", 64), ("right", 65)]
    events = launch_user(USER, *cases, on_row=lambda: (sleepers() and seen) or kill_zygote(seen))
    assert [event.status for event in events if hasattr(event, "status")] == ["ok"] * 3
    assert eventually(lambda: not sleepers())


def test_without_linux_workers_are_spawned(grid, monkeypatch):
    monkeypatch.setattr(local, "SOURCES", (Spawner,))
    monkeypatch.delattr(os, "pidfd_open")
    rows = grid("segfault", "sleeps_in_c", "right", build_limit_s=5)
    assert {name: row.status for name, row in rows.items()} == {
        "segfault": "crashed",
        "sleeps_in_c": "timeout",
        "right": "ok",
    }


def test_workers_that_cannot_be_forked_are_spawned(grid, monkeypatch):
    monkeypatch.setattr(Zygote, "fork", lambda *_: (_ for _ in ()).throw(Gone("CUDA was started before the fork")))
    assert grid("right")["right"].status == "ok"


def test_a_worker_killed_while_it_starts_is_not_out_of_memory_for_what_was_killed_before(grid, monkeypatch):
    fork = Spawner.fork

    def killed(*arguments):
        os.kill(pid := fork(*arguments), signal.SIGKILL)
        return pid

    monkeypatch.setattr(local, "SOURCES", (Spawner,))
    monkeypatch.setattr(Spawner, "fork", killed)
    monkeypatch.setattr("runner.device.processes.oom_kills", lambda: 26)  # since the system was started
    with pytest.raises(
        CannotStart, match="no worker could be started: the worker was killed by SIGKILL in phase start"
    ):
        grid("right")


def test_if_no_worker_starts_the_error_says_why(grid, monkeypatch):
    monkeypatch.setattr(local, "SOURCES", (Zygote,))
    monkeypatch.setattr(Zygote, "fork", lambda *_: (_ for _ in ()).throw(Gone("CUDA was started before the fork")))
    with pytest.raises(CannotStart, match="no worker could be started: CUDA was started before the fork; see"):
        grid("right")
