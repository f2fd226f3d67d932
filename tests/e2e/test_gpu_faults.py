"""Faults on a GPU in the middle of a grid: they cost their own row and little time, and change no other figure."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time

import pytest

from runner.store import journal

pytestmark = pytest.mark.gpu

HANG_LIMIT_S, LOST_BAR_S = 5.0, 1.5
GRID_LIMIT_S = 120.0  # four times the time of a grid; then the runner prints its stack
SIZES = range(1024, 1024 + 15 * 128, 128)
FAULTS = {SIZES[2]: "cuda_error", SIZES[5]: "cuda_error", SIZES[8]: "timeout", SIZES[11]: "oom"}
NAMES = dict(zip(FAULTS, ("far_away", "asserts", "endless", "fills"), strict=True))
USER = f"""
import torch, triton, triton.language as tl

@triton.jit
def _far_away(x, y):
    tl.store(y + tl.program_id(0).to(tl.int64) * 2**33, tl.load(x))

@triton.jit
def _endless(x, y):
    rounds = 0
    while tl.load(x, volatile=True) < 1e30:
        rounds += 1
    tl.store(y, rounds.to(tl.float32))

def far_away(x):
    y = torch.empty_like(x); _far_away[(64,)](x, y); return y

def asserts(x):
    return x[torch.full((1,), 2**40, device=x.device)]

def endless(x):
    y = torch.empty_like(x); _endless[(1,)](x, y); return y

def fills(x):
    held = []
    while True: held.append(torch.empty(2**30, dtype=torch.uint8, device=x.device))

def clean(x):
    return torch.nn.functional.gelu(x, approximate="tanh")

def mixed(x):
    return globals()[{NAMES}.get(x.shape[1], "clean")](x)
"""


@pytest.fixture
def grid(command, tmp_path):
    """Run the grid of one function. Return exit code, output, rows by size, and when each line was printed."""
    (tmp_path / "user.py").write_text(USER)

    def go(function):
        sizes = f"workload.cols=range({SIZES.start},{SIZES.stop},{SIZES.step})"
        limits = [f"launcher.build_limit_s={HANG_LIMIT_S}", f"launcher.measure_limit_s={HANG_LIMIT_S}"]
        words, options = command(
            *("workload=gelu", "workload.rows=4096", sizes, "impl=file", f"impl.path=user.py:{function}", "-m"),
            *(limits if function == "mixed" else []),  # the first grid may find everything cold
            env={
                "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
                "FAULTS_TEST": str(tmp_path),
                "PYTHONFAULTHANDLER": "1",
            },
        )
        moments, printed = [], []
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options) as process:
            late = threading.Timer(GRID_LIMIT_S, process.send_signal, [signal.SIGABRT])
            late.daemon = True
            late.start()
            for line in process.stdout:
                printed.append(line)
                if re.match(rf"\[\d+/{len(SIZES)}\] ", line):
                    moments.append(time.monotonic())
            late.cancel()
        out = "".join(printed)
        assert len(moments) == len(SIZES), out
        folder = max((tmp_path / "outputs").glob("*/*"), key=lambda path: path.stat().st_mtime)
        rows = {row.case.workload.fields["cols"]: row for row in journal.read_rows(folder)}
        return process.returncode, out, rows, moments

    return go


def test_faults_in_the_middle_of_a_grid_cost_seconds_and_change_no_other_figure(grid, tmp_path, survivors):
    code, out, expected, clean_moments = grid("clean")
    assert code == 0, out
    code, out, rows, mixed_moments = grid("mixed")
    assert code == 1, out
    assert not survivors(f"FAULTS_TEST={tmp_path}")

    assert list(rows) == list(SIZES)
    assert {cols: row.status for cols, row in rows.items()} == {cols: FAULTS.get(cols, "ok") for cols in SIZES}
    assert "no end of phase build within" in rows[SIZES[8]].reason

    (uuid,) = {row.metrics["gpu_uuid"] for row in (*rows.values(), *expected.values())}
    assert uuid.startswith(("GPU-", "MIG-"))
    assert {row.metrics["gpu_index"] for row in rows.values()} == {0}

    lost_s = {}
    for cols, name in NAMES.items():
        place = SIZES.index(cols)
        spans = [moments[place + 1] - moments[place - 1] for moments in (mixed_moments, clean_moments)]
        lost_s[name] = spans[0] - spans[1] - (HANG_LIMIT_S if name == "endless" else 0.0)
    print("seconds lost:", {name: round(seconds, 2) for name, seconds in lost_s.items()})

    apart = {}  # by size: how far the times are apart, and how far they may be, in %
    for cols in SIZES:
        if cols not in FAULTS:
            was, now = (row.metrics for row in (expected[cols], rows[cols]))
            allowed = max(1.0, 2 * max(was["interval_pct"], now["interval_pct"]))
            apart[cols] = 100 * (now["gpu_us"] / was["gpu_us"] - 1), allowed
    print("times apart, %:", {cols: (round(percent, 2), round(most, 2)) for cols, (percent, most) in apart.items()})

    assert max(lost_s.values()) < LOST_BAR_S, lost_s
    assert not {cols: pair for cols, pair in apart.items() if abs(pair[0]) > pair[1]}
