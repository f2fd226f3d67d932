"""Tests marked ``gpu`` run where torch sees a GPU. Shared: workloads with inputs, and the verdict of a tolerance.

What tests draw from torch is drawn from one seed, so that they pass everywhere or nowhere; ``SEED=7`` draws another.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runner.models.workload import Workload
from runner.records.case import CaseRecord, Choice
from runner.records.options import option_class, option_defaults
from runner.records.schema import rules_of
from runner.records.settings import Settings

if TYPE_CHECKING:  # the process that hands out the tests needs no torch
    from torch import Tensor

# Else torch.compile builds a program for each kind of vector of this CPU, to see if it runs: 15 s of a new cache.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# Processes to come, those of xdist too: threads of theirs that wait for each other leave their core to those that work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

sys.path.append(str(Path(__file__).parent))
import made_runs
import preloaded

# Hundreds of processes import the same modules: 0.4 s of each command would go into compiling those of the runner.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
preloaded.install()  # commands of the runner are forked from one process that has imported torch

KERNELS = "tests/kernels/"  # many short tests, that are but computed
# Files whose tests share what they compile or start.
SHARING = ("test_compiled_cuda_softmax.py", "test_compiled_hopper.py", "test_over_ranks.py")
LONGEST = ("test_every_kernel.py", *SHARING)  # of those in kernels/, what one process runs for ten seconds or more
INTERPRETED = "test_under_the_interpreter.py"  # each of its tests runs a minute of others
SMALL = ("implementations", "kernels", "models", "subject")  # folders whose tests compute on tensors of some kilobytes

Make = Callable[..., "tuple[Workload, tuple[Tensor, ...]]"]
Judge = Callable[[Any, "Sequence[Tensor]"], float]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without garbage collection, which takes half of the time; it ignores these objects later, too.

    In a new checkout one process rewrites the asserts of all files, 8 s. The others wait, and read what it kept.
    """
    gc.disable()
    try:
        return (yield from _one_first())
    finally:
        gc.freeze()
        gc.enable()


def _one_first() -> Generator[None, object, object]:
    if "PYTEST_XDIST_WORKER" not in os.environ or (Path(__file__).parent / "worker" / "__pycache__").exists():
        return (yield)
    with open(__file__, encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        return (yield)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import torch

    seed = int(os.environ.get("SEED", "0"))
    # Where torch sees no GPU, ``manual_seed`` keeps a traceback for when there is one: 0.6 ms of each of 7000 tests.
    torch.manual_seed(seed) if torch.cuda.is_available() else torch.default_generator.manual_seed(seed)


@pytest.fixture(autouse=True, scope="module")
def _one_thread(request: pytest.FixtureRequest) -> Generator[None, object, None]:
    """Compute on one thread in the folders of SMALL: threads that wait for each other took a third of the time."""
    import torch

    threads = torch.get_num_threads()
    if request.path.parent.name in SMALL:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def case() -> Callable[..., CaseRecord]:
    """``case("torch", "gelu", cols=8)``: a case of an implementation and a workload with these fields."""

    def build(
        impl: str = "torch", workload: str = "gelu", impl_fields: dict[str, object] | None = None, **fields: object
    ) -> CaseRecord:
        measure = Choice("benchmark", {"samples": 20})
        chosen = Choice(impl, impl_fields or {})  # type: ignore[arg-type]
        return CaseRecord(Choice(workload, fields or {"cols": 8}), chosen, (measure,), Settings("cpu", 0))  # type: ignore[arg-type]

    return build


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of the runner are started, not forked, as far as they get the environment of this process."""
    monkeypatch.setenv("COLD", "1")


@pytest.fixture
def make() -> Make:
    """``make("gelu", dtype="float32", rows=3, ...)``: the workload, and its inputs drawn from seed 0.

    Fields that are not given are as its YAML has them.
    """

    def build(
        name: str, *, dtype: str, device: str = "cpu", data: str = "normal", tf32: bool = False, **fields: object
    ) -> tuple[Workload, tuple[Tensor, ...]]:
        kind = option_class("models", name)
        values = option_defaults(f"workload/{name}")
        defaults = {attribute: values[field] for field, (attribute, _) in rules_of(kind).items()}
        workload = kind(**(defaults | {"dtype": dtype, "data": data, "tf32": tf32} | fields))
        return workload, workload.draw_inputs(device, seed=0)

    return build


@pytest.fixture(scope="session")
def expected_of() -> Callable[[Workload, tuple[Tensor, ...]], Any]:
    """``expected_of(workload, inputs)``: its reference, its own judge, or that of an automatic tolerance.

    That is made once, for inputs of seed 0: their values must be those of ``make``.
    """
    from runner.models.automatic import Automatic
    from runner.models.workload import Workload
    from runner.subject.operation import expected_outputs

    made: dict[tuple[Workload, str], Any] = {}

    def find(workload: Workload, inputs: tuple[Tensor, ...]) -> Any:
        if not isinstance(workload, Automatic):
            own = type(workload).expected_outputs is not Workload.expected_outputs
            return workload.expected_outputs(inputs) if own else workload.reference(*inputs)
        key = workload, inputs[0].device.type
        if key not in made:
            made[key] = expected_outputs(workload, inputs, quick=True)
        return made[key]

    return find


@pytest.fixture
def error() -> Judge:
    """The largest error of any output, as a multiple of what is allowed. NaN counts as inf.

    ``expected``: what ``expected_of`` returns.
    """
    from runner.timing.correctness import check_outputs

    def judge(expected: Any, outputs: Sequence[Tensor]) -> float:
        if not isinstance(expected, Sequence):
            result = expected.check_tensors(outputs)
            assert result.compared, result.reason
            return float(result.err_over_tol)
        errors = []
        for want, got in zip(expected, outputs, strict=True):  # of whatever type
            result = check_outputs([got], [replace(want, dtype="")], got.dtype)
            assert result.compared, result.reason
            errors.append(float(result.err_over_tol))
        return max(errors)

    return judge


def pytest_report_header() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "torch sees no NVIDIA GPU here: tests marked gpu are left out"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU where there is none. Long tests come first; what can fill gaps last, by length."""
    import torch

    if not torch.cuda.is_available() and (out := [item for item in items if item.get_closest_marker("gpu")]):
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=out)
    items.sort(key=lambda item: (item.path.name != INTERPRETED, KERNELS in item.nodeid, item.path.name not in LONGEST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """A file goes to one process, since its tests share what they start; in kernels/, each test function does.

    Of INTERPRETED, each test does.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if INTERPRETED in nodeid:
                return nodeid
            alone = KERNELS in nodeid and not any(name in nodeid for name in SHARING)
            return nodeid.partition("[" if alone else "::")[0]

    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], bool]:
    """``eventually(condition)``: whether it comes true within a minute. A signal is asynchronous, a machine busy."""

    def wait(condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + 60
        while not (met := condition()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return met

    return wait


@pytest.fixture
def gone(eventually: Callable[[Callable[[], bool]], bool]) -> Callable[[int], bool]:
    """``gone(pid)``: whether that process has ended within a minute, waited for by its parent or not."""

    def ended(pid: int) -> bool:
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or ") Z " in stat.read_text()

    return lambda pid: eventually(lambda: ended(pid))


@pytest.fixture
def survivors(eventually: Callable[[Callable[[], bool]], bool]) -> Callable[[str], list[str]]:
    """``survivors("NAME=value")``: processes that have this in their environment, or what they were started from had.

    Those that have not ended within a minute.
    """

    def marked(mark: str) -> list[str]:
        found = []
        for proc in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended, or is another user's
                if mark.encode() in (proc / "environ").read_bytes().split(b"\0"):
                    found.append((proc / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
        return found

    return lambda mark: [] if eventually(lambda: not marked(mark)) else marked(mark)


@pytest.fixture
def folder(tmp_path):
    """A finished run whose rows are ``made_runs.sweep()``."""
    return made_runs.finished(tmp_path / "outputs" / "2025-01-31" / "10-11-12-both", made_runs.sweep())


@pytest.fixture(scope="session")
def made():
    """The functions of made_runs.py, for tests that want other rows."""
    return made_runs.MAKE
