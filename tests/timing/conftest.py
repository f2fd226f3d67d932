"""Time that passes only where a test says so: what a busy machine does changes nothing. Another process on the GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# A process that has a context on the GPU from its word until its standard input ends.
OTHER = """
import ctypes, sys
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print("here", flush=True)
sys.stdin.read()
"""


class Clock:
    """Stands in for the module ``time``, where a module imports that."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all that decides by time how much to sample."""
    from runner.timing import procedure, ranks

    clock = Clock()
    for module in (procedure, ranks):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def other_context():
    """``with other_context():`` another process has a context on this GPU meanwhile, and has gone after it."""

    @contextmanager
    def held() -> Iterator[None]:
        with subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout
            assert other.stdout.readline() == b"here\n"
            yield
            other.communicate()

    return held
