"""An export of nsys with known answers, and a stand-in that fails as nsys was seen to fail."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import preloaded
import pytest

CALLER = (7 << 24) + 1  # thread 1 of process 7, which has the ranges
AUTOGRAD = (7 << 24) + 2  # another one of it, which has none
PROCESS = 7 << 24

TABLES = {
    "StringIds": ["id", "value"],
    "NVTX_EVENTS": ["start", "end", "eventType", "text", "textId", "globalTid", "domainId"],
    "CUPTI_ACTIVITY_KIND_RUNTIME": ["start", "end", "globalTid", "correlationId", "nameId"],
    "CUPTI_ACTIVITY_KIND_KERNEL": ["start", "end", "correlationId", "globalPid", "demangledName", "gridX", "blockX"],
    "CUPTI_ACTIVITY_KIND_MEMCPY": ["start", "end", "correlationId", "globalPid", "copyKind", "bytes"],
    "CUPTI_ACTIVITY_KIND_MEMSET": ["start", "end", "correlationId", "globalPid", "bytes"],
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ["start", "end"],
    "DIAGNOSTIC_EVENT": ["severity", "text"],
    "META_DATA_EXPORT": ["name", "value"],
}


class Export:
    """An export of nsys. Times are given in microseconds; like nsys, it has no tables without rows."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple]] = {name: [] for name in TABLES}
        self._texts: dict[str, int] = {}

    def text(self, value: str) -> int:
        """The key of a string."""
        if value not in self._texts:
            self._texts[value] = len(self._texts) + 1
            self.rows["StringIds"].append((self._texts[value], value))
        return self._texts[value]

    def range(self, name: str, start: float, end: float | None, thread: int = CALLER, *, domain: int = 0) -> None:
        """An NVTX range, as torch pushes and pops it."""
        stop = None if end is None else int(end * 1e3)
        self.rows["NVTX_EVENTS"].append((int(start * 1e3), stop, 59, name, None, thread, domain))

    def api(self, name: str, start: float, end: float, key: int, thread: int = CALLER) -> None:
        """A call of CUDA's."""
        row = (int(start * 1e3), int(end * 1e3), thread, key, self.text(name))
        self.rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append(row)

    def kernel(self, name: str, start: float, end: float, key: int, grid: int = 132) -> None:
        """A kernel that the call with the same key has launched."""
        row = (int(start * 1e3), int(end * 1e3), key, PROCESS, self.text(name), grid, 256)
        self.rows["CUPTI_ACTIVITY_KIND_KERNEL"].append(row)

    def copy(self, kind: int, start: float, end: float, key: int, size: int) -> None:
        """A copy."""
        self.rows["CUPTI_ACTIVITY_KIND_MEMCPY"].append((int(start * 1e3), int(end * 1e3), key, PROCESS, kind, size))

    def fill(self, start: float, end: float, key: int, size: int) -> None:
        """A memset."""
        self.rows["CUPTI_ACTIVITY_KIND_MEMSET"].append((int(start * 1e3), int(end * 1e3), key, PROCESS, size))

    def add(self, table: str, *row: object) -> None:
        """Any other row."""
        self.rows[table].append(row)

    def training_step(self, at: float, key: int) -> None:
        """A call from ``at`` to ``at + 100``: two gemms forward, a relu and a fill backward, and a copy.

        Busy for 47 us, from 25 to 88: idle for 5 and 11. The launches are waited for 10, 23, 10, 19 and 0 us.
        """
        self.range("call", at, at + 100)
        self.range("step_0", at + 5, at + 90)
        self.range("forward", at + 10, at + 40)
        self.api("cudaLaunchKernel_v7000", at + 12, at + 15, key)
        self.kernel("gemm", at + 25, at + 45, key)
        self.api("cuLaunchKernelEx", at + 20, at + 22, key + 1)
        self.kernel("gemm", at + 45, at + 65, key + 1, grid=66)
        self.range("backward", at + 40, at + 85)
        self.api("cudaLaunchKernel_v7000", at + 50, at + 52, key + 2, AUTOGRAD)
        self.kernel("relu", at + 62, at + 70, key + 2)
        self.api("cudaMemsetAsync_v3020", at + 55, at + 56, key + 3, AUTOGRAD)
        self.fill(at + 75, at + 76, key + 3, 1000)
        self.api("cudaMemcpyAsync_v3020", at + 86, at + 89, key + 4)
        self.copy(2, at + 87, at + 88, key + 4, 4)
        self.api("cudaDeviceSynchronize_v3020", at + 91, at + 99, key + 5)

    def save(self, path: Path) -> Path:
        """The file."""
        connection = sqlite3.connect(path)
        for table, rows in self.rows.items():
            if rows:
                columns = ", ".join(f'"{name}"' for name in TABLES[table])
                connection.execute(f'CREATE TABLE "{table}" ({columns})')
                connection.executemany(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(TABLES[table]))})', rows)
        connection.commit()
        connection.close()
        return path


@pytest.fixture
def export():
    """An export without rows."""
    return Export()


@pytest.fixture
def training():
    """The definition of the model, then two calls, each after an L2 flush."""
    export = Export()
    export.range("define_model", 0, 100)
    export.api("cudaLaunchKernel_v7000", 10, 12, 1)
    export.kernel("init", 20, 30, 1)
    for at in (200, 400):
        export.api("cudaLaunchKernel_v7000", at - 10, at - 8, at - 1)
        export.kernel("flush", at - 7, at - 2, at - 1)
        export.training_step(at, at)
    export.add("META_DATA_EXPORT", "EXPORT_PRODUCT_VERSION", "2024.2.3.38")
    return export


FAKE = '''{start}
"""Stand-in for nsys. The variable FAKE_NSYS chooses its behaviour."""
import os, pathlib, shutil, signal, subprocess, sys, time

how, words = os.environ["FAKE_NSYS"], sys.argv[1:]
if words[:2] == ["profile", "--help"]:
    if how == "renamed":
        print("--trace= --sample= --cpuctxsw= --force-overwrite= --capture-range= --capture-range-end=")
    sys.exit(0)
options = dict(word.partition("=")[::2] for word in words[1:] if word.startswith("--"))
if words[0] == "export":
    if how == "locked":
        sys.exit("database is locked")
    shutil.copy(os.environ["FAKE_NSYS_EXPORT"], options["--output"])
    sys.exit(0)
report = pathlib.Path(options["--output"].replace("%%", "%") + ".nsys-rep")
program = words[next(place for place, word in enumerate(words) if place and not word.startswith("-")):]
if how == "usage":
    print("unrecognised option '--bogus=1'\\n\\nusage: nsys profile [<args>] [application] [<application args>]")
    sys.exit(1)
if how == "hangs":
    def end(*_):
        report.write_text("what there was")
        print("Generated:\\n    " + str(report))
        sys.exit(143)
    signal.signal(signal.SIGTERM, end)
    time.sleep(60)
if how == "range ends it":
    print("Capture range ended in the application.", flush=True)
    sys.exit(143)
code = subprocess.run(program).returncode
print("Generating '/somewhere/nsys-report-1f2e.qdstrm'")
print("[1/1] [0%                          ] report.nsys-rep\\r[1/1] [========================100%] report.nsys-rep")
if how == "no importer":
    print("Importer error status: The importer binary and its dependencies were not found.")
    print("Unable to retrieve the importer version: skipping importation of the QDSTRM file.")
    report = report.with_suffix(".qdstrm")
print("Generated:")
if how != "never opened":
    report.write_text("a report")
    print("    " + str(report))
sys.exit(code)
'''


@pytest.fixture
def fake_nsys(tmp_path, monkeypatch):
    """``fake_nsys("usage", export)``: return the path of a stand-in with that behaviour, which exports ``export``."""

    def make(how: str = "whole", export: Export | None = None) -> str:
        path = tmp_path / "fake_nsys"
        path.write_text(FAKE.replace("{start}", preloaded.stand_in()))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("FAKE_NSYS", how)
        if export is not None:
            monkeypatch.setenv("FAKE_NSYS_EXPORT", str(export.save(tmp_path / "export.sqlite")))
        return str(path)

    return make
