"""Triton kernels checked without a GPU: the tests of this room once more, in a process with TRITON_INTERPRET=1.

The variable counts when a kernel is decorated, hence the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).parents[2]
# Seconds each, of what the other activation or another size shows as well.
LONG = ("129-65-2-512-dtype0", "7-130-3-512-dtype0-gelu")
EVERY = "test_every_kernel and (float32 or layout)"  # every kernel beside float64, at small and odd sizes
ROOMS = (
    "test_split_triton",
    "test_matmul",
    "test_softmax",
    "test_reductions",
    "test_mlp_in_triton",
    "test_matmul_triton",
)
REST = "others"
LEFT_OUT = ("_compiled_", "_cuda", Path(__file__).stem)  # nothing of them is interpreted


def room(file: Path) -> str:
    """Return the longest of ROOMS that the name of ``file`` begins with, or REST."""
    return max((name for name in ROOMS if file.stem.startswith(name)), key=len, default=REST)


FILES = [file for file in sorted(Path(__file__).parent.glob("test_*.py")) if not any(x in file.stem for x in LEFT_OUT)]
PARTS = {EVERY: ["test_every_kernel.py"]} | {
    name: [f.name for f in FILES if room(f) == name] for name in (*ROOMS, REST)
}


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this is that process")
@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=() if part == EVERY else pytest.mark.long) for part in PARTS]
)
def test_triton_kernels_pass_every_test_when_interpreted(part):
    triton = pytest.importorskip("triton")
    if numpy.lib.NumpyVersion(numpy.__version__) >= "2.4.0" and triton.__version__ < "3.7":
        pytest.skip("the interpreter of this Triton fails with numpy 2.4: loops over a number of blocks raise")
    command = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider"]
    chosen = EVERY if part == EVERY else f"not ({EVERY})"
    command += ["-k", f"triton and not cuda and not compiled and not {' and not '.join(LONG)} and {chosen}"]
    # One thread: what is computed is small, and threads that wait for each other take the time of other tests.
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ran = subprocess.run(
        [*command, *(f"tests/kernels/{name}" for name in PARTS[part])],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout
