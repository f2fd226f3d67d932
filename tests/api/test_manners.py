"""The caller's process is left as it was."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import runner
from runner import bench, do_bench
from runner.timing import cpu
from runner.worker.process_state import read_state

ROOT = Path(__file__).resolve().parents[2]
X = torch.linspace(-3, 3, 60).reshape(6, 10)


class Mine(Exception):
    """The caller's own."""


def state() -> dict[str, object]:
    affinity = {thread: os.sched_getaffinity(thread) for thread in cpu.all_threads()}
    own = {"collector": (gc.isenabled(), gc.get_freeze_count(), gc.get_threshold()), "affinity": affinity}
    own |= {"random": random.getstate(), "torch": torch.get_rng_state().tolist(), "path": list(sys.path)}
    return own | {"environment": dict(os.environ)}


def noisy(x):
    return torch.nn.functional.dropout(x) + torch.randn(())


@pytest.fixture(autouse=True)
def none_frozen():
    """Objects that the tests have frozen are freed now and then, which would change their number."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_of_the_process_has_changed(brief, enabled):
    gc.enable() if enabled else gc.disable()
    try:
        bench(noisy, X)  # starts the threads
        before, shared = state(), read_state()
        bench(noisy, X)
        bench({"a": noisy, "b": noisy}, X, grad=True)
        do_bench(lambda: noisy(X), rep=5)
        assert state() == before
        assert read_state().changes_since(shared) == []
    finally:
        gc.enable()


@pytest.mark.parametrize("at", [1, 2, 7, 30])
def test_nothing_has_changed_when_the_function_raises_and_the_exception_is_the_callers_own(brief, at):
    calls, error, x = [], Mine("my own"), X.clone()

    def fails(x):
        calls.append(1)
        x.add_(torch.rand(()))
        if len(calls) == at:
            raise error
        return x

    bench(noisy, X)
    before, shared = state(), read_state()
    with pytest.raises(Mine) as caught:
        bench(fails, x)
    assert caught.value is error
    assert error.__cause__ is None
    assert torch.equal(x, X)
    assert state() == before
    assert read_state().changes_since(shared) == []


def test_a_reference_that_raises_is_the_callers_own_too(brief):
    def reference(x):
        raise Mine

    with pytest.raises(Mine):
        bench(noisy, X, check=reference)


def test_a_profiler_of_the_callers_goes_on_and_is_whole(brief):
    with torch.autograd.profiler.profile() as profile:
        torch.exp(X)
        bench(torch.relu, X)
        torch.sin(X)
    names = [event.name for event in profile.function_events]
    assert {"aten::exp", "aten::relu", "aten::sin"} <= set(names)


def test_the_function_runs_in_the_callers_modes(brief):
    seen = set()

    def modes(x):
        seen.add((torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return x @ x.T

    with torch.inference_mode():
        bench(modes, X, check=lambda x: x @ x.T)
        inside = torch.ones(5)
        bench(lambda y: y.add_(1), inside)  # an inference tensor can be restored in this mode alone
        assert inside.eq(1).all()
    with torch.autocast("cpu", torch.bfloat16):
        assert bench({"a": modes}, X, check=lambda x: x @ x.T)["a"].correct
    with torch.no_grad():
        bench(modes, X)
    assert {(True, False, False), (False, True, True), (False, False, False)} <= seen


def test_threads_measure_one_after_the_other(brief):
    inside, most, found = [], [], []

    def watched(x):
        inside.append(1)
        most.append(len(inside))
        result = x + 1
        inside.pop()
        return result

    threads = [threading.Thread(target=lambda: found.append(bench(watched, X))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.verdict != "wrong" for one in found] == [True] * 3
    assert max(most) == 1


def test_a_function_may_tune_itself_in_its_first_call(brief):
    tuned = []

    def tunes(x):
        if not tuned:
            tuned.append(do_bench(lambda: x + 1, rep=1))
        return x + 1

    assert bench(tunes, X).us > 0
    assert tuned[0] > 0


def test_waiting_of_the_callers_other_threads_does_not_count(monkeypatch, brief):
    asked = []
    monkeypatch.setattr(cpu, "waited_s", lambda threads=None: asked.append(threads) or 0.0)
    bench(torch.relu, X)
    assert all(len(threads) == torch.get_num_threads() for threads in asked)


PROGRAM = """
import os, sys
before = set(sys.modules)
import runner
assert "torch" not in sys.modules
assert not [name for name in set(sys.modules) - before if name.partition(".")[0] not in ("runner", "kernel_runner")
            and name.partition(".")[0] not in sys.stdlib_module_names]
import torch
import torch.autograd.profiler
x = torch.ones(100)
before = {name.partition(".")[0] for name in sys.modules}
one = runner.bench(torch.relu, x, max_s=0.01)
two = runner.bench({"a": torch.relu, "b": lambda x: x.clamp(min=0)}, x, check=torch.relu, max_s=0.01)
runner.do_bench(lambda: torch.relu(x), rep=1)
texts = [repr(one), one._repr_html_(), repr(two), two._repr_html_(), two.markdown()]
assert all(texts)
after = {name.partition(".")[0] for name in sys.modules}
more = {name for name in after - before if name not in sys.stdlib_module_names}
assert more <= {"runner", "kernel_runner"}, more
assert not os.listdir(os.environ["HOME"]), os.listdir(os.environ["HOME"])
assert not os.listdir("."), os.listdir(".")
"""


def test_nothing_but_torch_is_imported_no_file_is_written_and_nothing_is_printed(tmp_path):
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    keep = {name: value for name, value in os.environ.items() if name not in ("XDG_CACHE_HOME", "PYTHONPATH")}
    environment = keep | {"HOME": str(home), "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_public_names_are_there_and_no_module_hides_one():
    assert {"bench", "do_bench", "load", "Timing", "Comparison"} <= set(dir(runner))
    modules = {path.stem for path in (ROOT / "runner").iterdir()}
    assert not modules & runner.PUBLIC.keys()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = runner.nothing


def test_copies_that_memory_is_too_short_for_cost_the_notice_of_changes_alone(brief, monkeypatch):
    def full(self):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch.Tensor, "clone", full)
    assert bench(torch.relu, X).us > 0
