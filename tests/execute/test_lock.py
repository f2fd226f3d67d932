"""The lock of a GPU: one holder at a time, until the last process that has inherited it has ended."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile

import pytest

from runner.device import lock, processes
from runner.device.gpus import Gpu
from runner.device.lock import GpuLock, acquire_all
from runner.records.bad_input import BadInput

H200 = Gpu(0, "GPU-aa", "NVIDIA H200", 1, 0)
MIG_1, MIG_2 = (Gpu(i, f"MIG-{i}", f"A100 MIG {i}g", 1, 0, "GPU-bb") for i in (1, 2))
WHOLE = Gpu(0, "GPU-bb", "A100", 1, 0)

SECTIONS = """
import os, sys, time
from runner.device.lock import GpuLock
overlaps = 0
for _ in range(20):
    lock = GpuLock("GPU-aa")
    lock.acquire(lambda text: None)
    try: os.close(os.open(sys.argv[1], os.O_CREAT | os.O_EXCL))
    except FileExistsError: overlaps += 1
    time.sleep(0.002)
    os.unlink(sys.argv[1])
    lock.release()
    time.sleep(0.005)
print(overlaps)
"""

# Each round: a holder is killed when the next one says that it waits; a heir outlives it by ``linger`` seconds.
KILLS = """
import json, os, signal, sys, time
from runner.device import lock
from runner.device.lock import GpuLock
linger, lock.POLL_S = float(sys.argv[1]), float(sys.argv[2])

def hold(ready):
    GpuLock.acquire(mine := GpuLock("GPU-aa"), print)
    alive, ends = os.pipe()
    if linger and os.fork() == 0:
        os.close(ends)
        os.write(ready, b" ")
        os.read(alive, 1)  # until the holder is gone
        time.sleep(linger)
        os.write(ready, str(time.monotonic()).encode())
        os._exit(0)
    if not linger: os.write(ready, b" ")
    time.sleep(60)

rounds = []
for _ in range(20):
    said, ready = os.pipe()
    if (holder := os.fork()) == 0: hold(ready)
    os.close(ready)
    os.read(said, 1)
    killed = []
    def kill(text):
        killed.append((text, time.monotonic()))
        os.kill(holder, signal.SIGKILL)
    next_one = GpuLock("GPU-aa")
    next_one.acquire(kill)
    entered = time.monotonic()
    text, at = killed[0]
    free = float(os.read(said, 100) or at)
    os.waitpid(holder, 0)
    rounds.append((f"held by pid {holder} on host " in text, entered - free, free - at))
    next_one.release()
print(json.dumps(rounds))
"""


def start(script, *argv):
    return subprocess.Popen(
        [sys.executable, "-c", script, *argv], env=processes.environment(), stdout=subprocess.PIPE, text=True
    )


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.setenv(lock.VARIABLE, str(tmp_path / "locks"))
    return tmp_path / "locks"


class Waits(Exception):
    """Another process holds the lock; the message is what the user is told."""


def waits(text):
    raise Waits(text)


def test_one_process_at_a_time(tmp_path):
    users = [start(SECTIONS, str(tmp_path / "inside")) for _ in range(4)]
    assert [user.communicate(timeout=300)[0].strip() for user in users] == ["0"] * 4


@pytest.mark.parametrize("linger", [0.0, 0.15])
def test_the_next_one_enters_when_the_last_heir_of_a_killed_holder_is_gone(linger):
    poll = 0.03
    rounds = json.loads(start(KILLS, str(linger), str(poll)).communicate(timeout=300)[0])
    assert len(rounds) == 20
    named, late, outlived = zip(*rounds, strict=True)
    assert all(named)
    assert min(late) >= 0  # none enters before
    assert sorted(late)[10] < 30 * poll  # 1.2 of one on a quiet machine
    assert min(outlived) >= linger


def test_a_child_that_was_given_the_descriptor_holds_the_lock():
    mine, wanted = GpuLock("GPU-aa"), GpuLock("GPU-aa")
    mine.acquire(waits)
    heir = subprocess.Popen(["sleep", "60"], pass_fds=[mine.fileno()])
    mine.release()
    try:
        with pytest.raises(Waits):
            wanted.acquire(waits)
    finally:
        heir.kill()
        heir.wait()
    wanted.acquire(waits)
    wanted.release()


def test_a_child_that_was_not_does_not():
    mine, wanted = GpuLock("GPU-aa"), GpuLock("GPU-aa")
    mine.acquire(waits)
    other = subprocess.Popen(["sleep", "60"], close_fds=False)
    mine.release()
    try:
        wanted.acquire(waits)
    finally:
        other.kill()
        other.wait()
        wanted.release()


def test_waiting_tells_of_the_holder_at_once_and_then_from_time_to_time(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python", "-m", "runner", "workload=gelu\x1b[31m"])
    monkeypatch.setattr(lock, "NOTIFY_EVERY_S", 0.1)
    [mine] = acquire_all([H200], waits)
    said = []

    def listen(text):
        said.append(text)
        if len(said) == 3:
            mine.release()

    [wanted] = acquire_all([H200], listen)
    wanted.release()
    expected = rf"waiting for GPU 0 \(NVIDIA H200\): held by pid {os.getpid()} on host \S+ since [\d-]+ \d\d:\d\d "
    assert len(said) == 3
    assert re.fullmatch(expected + r"\(python -m runner 'workload=gelu\?\[31m'\)", said[0])


def test_everybody_may_read_who_holds_it_and_no_key(here, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "runner", "+log.api_key=abcdef0123"])
    lock = GpuLock("GPU-1")
    lock.acquire(print)
    (path,) = here.glob("*.lock")
    assert "python -m runner '+log.api_key=<redacted>'" in path.read_text()
    lock.release()


@pytest.mark.parametrize(("inside", "holder"), [(b"", "an unknown process"), (b"\xff\n", "\ufffd\\?")])
def test_a_file_that_says_nothing_is_locked_all_the_same(here, inside, holder):
    mine = GpuLock("cpu", "the CPU")
    mine.acquire(waits)
    (here / "cpu.lock").write_bytes(inside)
    with pytest.raises(Waits, match=rf"^waiting for the CPU: held by {holder}$"):
        GpuLock("cpu", "the CPU").acquire(waits)
    mine.release()


def test_instances_of_a_gpu_go_together_but_not_with_the_whole_of_it():
    first = acquire_all([MIG_1], waits)
    second = acquire_all([MIG_2], waits)
    assert [one.uuid for one in first] == ["GPU-bb", "MIG-1"]
    with pytest.raises(Waits, match="A100 MIG 1g"):
        acquire_all([MIG_1], waits)
    for part in (first, second):
        with pytest.raises(Waits, match=r"A100.*a shared lock"):
            acquire_all([WHOLE], waits)
        for one in part:
            one.release()
    [whole] = acquire_all([WHOLE], waits)
    with pytest.raises(Waits, match="the whole of GPU 2"):
        acquire_all([MIG_2], waits)
    whole.release()


def test_several_are_taken_in_one_order_and_given_back_if_one_is_not_to_be_had():
    other = Gpu(1, "GPU-cc", "NVIDIA H200", 1, 0)
    both = acquire_all([other, MIG_2, H200, MIG_1], waits)
    assert [one.uuid for one in both] == ["GPU-aa", "GPU-bb", "GPU-cc", "MIG-1", "MIG-2"]
    assert len({one.fileno() for one in both}) == 5
    both[0].release()
    with pytest.raises(Waits):
        acquire_all([other, H200], waits)
    [again] = acquire_all([H200], waits)
    for one in [*both, again]:
        one.release()


def test_everybody_may_use_folder_and_files(here):
    umask = os.umask(0o077)
    try:
        one = GpuLock("GPU-aa")
        one.acquire(waits)
        one.release()
    finally:
        os.umask(umask)
    assert here.stat().st_mode & 0o7777 == 0o1777
    assert (here / "GPU-aa.lock").stat().st_mode & 0o7777 == 0o666


def test_jobs_with_temporary_folders_of_their_own_exclude_each_other(monkeypatch, tmp_path):
    monkeypatch.delenv(lock.VARIABLE)
    monkeypatch.setattr(lock, "MACHINE_WIDE", tmp_path / "file" / "kernel-runner")  # cannot be made
    (tmp_path / "file").touch()
    uuid = f"GPU-of-test-{os.getpid()}"
    script = f"""
import sys
from pathlib import Path
from runner.device import lock
lock.MACHINE_WIDE = Path(sys.argv[1])
lock.GpuLock({uuid!r}).acquire(sys.exit)
print("holds", flush=True)
input()
"""
    words = [sys.executable, "-c", script, str(lock.MACHINE_WIDE)]
    other = subprocess.Popen(
        words,
        env=processes.environment() | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout.readline() == "holds\n"
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "another"))
    with pytest.raises(Waits, match=f"held by pid {other.pid} "):
        GpuLock(uuid).acquire(waits)
    other.communicate("")
    (lock.folder() / f"{uuid}.lock").unlink()


def test_the_folder_is_the_machine_s_or_else_one_that_all_jobs_share(monkeypatch, tmp_path):
    monkeypatch.delenv(lock.VARIABLE)
    monkeypatch.setattr(lock, "MACHINE_WIDE", tmp_path / "machine" / "kernel-runner")
    monkeypatch.setattr(lock, "SHARED", tmp_path / "kernel-runner-locks")
    assert lock.folder() == tmp_path / "machine" / "kernel-runner"
    (tmp_path / "file").touch()
    monkeypatch.setattr(lock, "MACHINE_WIDE", tmp_path / "file" / "kernel-runner")
    assert lock.folder() == tmp_path / "kernel-runner-locks"
    (tmp_path / "kernel-runner-locks").rmdir()
    (tmp_path / "kernel-runner-locks").touch()
    with pytest.raises(BadInput, match=f"set {lock.VARIABLE} to a folder"):
        lock.folder()


def test_a_folder_that_cannot_be_used_is_a_mistake_of_the_user(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv(lock.VARIABLE, str(tmp_path / "file" / "locks"))
    with pytest.raises(BadInput, match=f"cannot write to .*file/locks; set {lock.VARIABLE} to a folder"):
        acquire_all([H200], waits)


def test_a_file_that_cannot_be_used_is_one_as_well(here):
    here.mkdir()
    (here / "GPU-aa.lock").mkdir()
    with pytest.raises(BadInput, match=f"GPU-aa.lock cannot be locked: Is a directory.*set {lock.VARIABLE}"):
        acquire_all([H200], waits)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
def test_another_user_s_file_is_used(tmp_path):
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o1777)
        script = "import os; from runner.device.lock import GpuLock; os.setuid({}); GpuLock('GPU-aa').acquire(print)"
        for user in (65534, 65533):
            done = subprocess.run(
                [sys.executable, "-c", script.format(user)], env={**processes.environment(), lock.VARIABLE: place}
            )
            assert done.returncode == 0
        assert os.stat(f"{place}/GPU-aa.lock").st_uid == 65534
