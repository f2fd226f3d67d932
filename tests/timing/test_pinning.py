"""Threads on CPUs of their own, and everything as it was afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from runner.timing import cpu
from runner.timing.cpu import all_threads, as_ranges, choose_cores, openmp_threads, pinned

ROOT = Path(__file__).resolve().parents[2]

linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="asks Linux")
enough = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or torch.get_num_threads() > len(os.sched_getaffinity(0)),
    reason="more threads than CPUs",
)


def masks():
    found = {}
    for thread in all_threads():
        with contextlib.suppress(ProcessLookupError):  # one of another test's, which has just ended
            found[thread] = os.sched_getaffinity(thread)
    return found


def unchanged(before):
    """Whether the masks are those of ``before``, but for threads that have ended meanwhile."""
    return masks().items() <= before.items()


def confined(whole):
    """The CPU of each thread that has but one."""
    return {thread: min(mask) for thread, mask in masks().items() if len(mask) == 1 and mask != whole}


def busy_threads(call, seconds=0.4):
    """Threads that had a tenth of the CPU time, so much of this process, in which ``call`` was called over and over."""

    def ticks():
        fields = {
            thread: Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2] for thread in all_threads()
        }
        return {thread: sum(map(int, text.split()[11:13])) for thread, text in fields.items()}

    before, end = ticks(), time.process_time() + seconds
    while time.process_time() < end:
        call()
    least = seconds / 10 * os.sysconf("SC_CLK_TCK")
    return {thread for thread, now in ticks().items() if now - before.get(thread, 0) >= least}


def gelu():
    return torch.nn.functional.gelu(torch.ones(1024, 1024))


@pytest.fixture
def threads():
    """``threads(n)``: torch computes on n threads until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@enough
@pytest.mark.parametrize("run", [gelu, lambda: torch.ones(512, 512) @ torch.ones(512, 512)], ids=["gelu", "matmul"])
def test_each_thread_that_computes_has_a_cpu_of_its_own_and_the_text_names_them(run):
    whole = os.sched_getaffinity(0)
    run()  # the pool is there before
    with pinned(run) as cpus:
        buffer_sets = {thread: min(os.sched_getaffinity(thread)) for thread in openmp_threads()}
        assert all(os.sched_getaffinity(thread) == {cpu} for thread, cpu in buffer_sets.items())
        assert len(buffer_sets) == torch.get_num_threads() == len(set(buffer_sets.values()))
        assert set(buffer_sets.values()) <= whole
        assert cpus == as_ranges(set(buffer_sets.values()))
        busy = busy_threads(run)
        assert threading.get_native_id() in busy
        assert busy <= buffer_sets.keys()
        assert {thread for thread, mask in masks().items() if mask != whole} <= buffer_sets.keys()


@enough
@pytest.mark.skipif(shutil.which("g++") is None, reason="nothing to compile with")
def test_what_torch_compiles_runs_on_the_same_threads():
    compiled, x = torch.compile(lambda x: torch.nn.functional.gelu(x) * 2), torch.ones(1024, 1024)
    compiled(x)
    with pinned(lambda: compiled(x)) as cpus:
        assert cpus
        assert busy_threads(lambda: compiled(x)) <= openmp_threads().keys()


@enough
def test_the_pool_need_not_have_been_started(tmp_path):
    program = tmp_path / "program.py"  # a file, so that its process is forked
    program.write_text(
        "import os, torch; from runner.timing.cpu import all_threads, pinned\n"
        "with pinned() as cpus:\n"
        "    torch.nn.functional.gelu(torch.ones(1024, 1024))\n"
        "    print(cpus, sum(len(os.sched_getaffinity(thread)) == 1 for thread in all_threads()))\n"
        "print(os.sched_getaffinity(0))"
    )
    inside, after = subprocess.check_output([sys.executable, program], cwd=ROOT, text=True).splitlines()
    assert inside.split()[0]
    if len(os.sched_getaffinity(0)) > 1:
        assert int(inside.split()[1]) == torch.get_num_threads()
    assert after == str(os.sched_getaffinity(0))


@linux
def test_every_mask_is_as_it_was_after_the_end():
    gelu()
    before = masks()
    with pinned(gelu):
        pass
    assert unchanged(before)


@linux
def test_every_mask_is_as_it_was_after_an_exception_inside():
    gelu()
    before = masks()
    with pytest.raises(KeyError), pinned():
        raise KeyError
    assert unchanged(before)


@linux
def test_every_mask_is_as_it_was_after_an_exception_of_the_call():
    gelu()
    before = masks()
    with pytest.raises(KeyError), pinned({}.popitem):
        pytest.fail("entered")
    assert unchanged(before)


@linux
def test_a_child_started_afterwards_has_every_cpu():
    with pinned():
        pass
    program = "import os; print(os.sched_getaffinity(0))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == str(os.sched_getaffinity(0))


@linux
def test_a_thread_started_inside_has_every_cpu_afterwards():
    whole, done = os.sched_getaffinity(0), threading.Event()
    thread = threading.Thread(target=done.wait)
    with pinned():
        thread.start()
    assert os.sched_getaffinity(thread.native_id) == whole
    done.set()
    thread.join()


@linux
def test_nothing_is_pinned_where_the_call_starts_threads():
    """They would stand on the CPU of the thread that starts them."""
    whole, done, threads = os.sched_getaffinity(0), threading.Event(), []

    def call():
        threads.append(threading.Thread(target=done.wait))
        threads[-1].start()

    with pinned(call) as cpus:
        assert cpus == ""
        assert not confined(whole)
    assert os.sched_getaffinity(threads[0].native_id) == whole
    done.set()
    threads[0].join()


@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 3, reason="fewer than three CPUs")
def test_nothing_is_pinned_where_regions_differ_in_size(threads):
    """OpenMP ends the threads that a region does not need, and the next region starts others."""

    def call():
        for count in (2, 3):
            threads(count)
            gelu()

    threads(3)
    whole = os.sched_getaffinity(0)
    with pinned(call) as cpus:
        assert cpus == ""
        assert not confined(whole)
        assert all(os.sched_getaffinity(thread) == whole for thread in openmp_threads())


@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 3, reason="fewer than three CPUs")
def test_threads_that_the_call_ends_are_not_named(threads):
    threads(3)

    def call():
        threads(2)
        gelu()

    with pinned(call) as cpus:
        assert cpus == as_ranges({min(os.sched_getaffinity(thread)) for thread in openmp_threads()})
        assert len(openmp_threads()) == 2


@linux
def test_one_thread_is_pinned_alone(threads):
    threads(1)
    with pinned(gelu) as cpus:
        assert os.sched_getaffinity(0) == {int(cpus)}


@linux
def test_more_threads_than_cpus_are_not_pinned(threads):
    whole = os.sched_getaffinity(0)
    threads(len(whole) + 1)
    with pinned(gelu) as cpus:
        assert cpus == ""
        assert not confined(whole)


@linux
@pytest.mark.parametrize("granted", [0, 1])
def test_a_system_that_refuses_is_left_alone(monkeypatch, granted):
    gelu()
    before, real, calls = masks(), os.sched_setaffinity, []

    def refuse(thread, mask):
        calls.append(thread)
        if len(mask) == 1 and len(calls) > granted:
            raise PermissionError
        real(thread, mask)

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    called = []
    with pinned(lambda: called.append(gelu())) as cpus:
        assert len(called) == 1
        if torch.get_num_threads() > granted and len(before[threading.get_native_id()]) > 1:
            assert cpus == ""
        assert unchanged(before)
    assert unchanged(before)


def test_a_system_without_threads_to_pin_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu, "TASKS", tmp_path / "none")
    with pinned(gelu) as cpus:
        assert cpus == ""


PAIRS = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}


@pytest.mark.parametrize(
    ("here", "cpus"),
    [
        ([3, 0, 5, 2], [3, 0, 5, 2]),  # each stays where it is
        ([0, 0, 0, 0], [0, 1, 2, 3]),  # one core each
        ([6, 2, 6], [6, 0, 1]),  # 2 is the same core as 6
        ([0, 4, 1, 5, 2, 6], [0, 3, 1, 4, 2, 5]),  # siblings when there are no more cores
        ([9, 0], [1, 0]),  # on a CPU that is not allowed
        ([7] * 8, [7, 0, 1, 2, 3, 4, 5, 6]),
        ([0] * 9, []),
    ],
)
def test_threads_stay_where_they_are_or_get_a_core_of_their_own(here, cpus):
    assert choose_cores(dict(enumerate(here)), PAIRS) == dict(enumerate(cpus))


@pytest.mark.parametrize(
    ("cpus", "text"), [(set(), ""), ({5}, "5"), ({0, 1, 2, 3, 8}, "0-3,8"), ({7, 1, 3, 2}, "1-3,7")]
)
def test_cpus_read_as_ranges(cpus, text):
    assert as_ranges(cpus) == text
