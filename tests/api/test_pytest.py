"""The fixtures ``bench`` and ``assert_not_slower``, as a user's tests get them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.api import pytest_plugin
from runner.findings.past import read_run

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import time
import pytest, torch
from kernel_runner.api import pytest_plugin

pytest_plugin.FIRST_S = 0.15  # what is slower here takes five times as long
x = torch.randn(8)

def wait(ms):
    def function(x):
        end = time.perf_counter_ns() + int(ms * 1_000_000)
        while time.perf_counter_ns() < end:
            pass
        return x + 1
    return function

def test_equal(assert_not_slower):
    found = assert_not_slower(wait(0.1), x, than=wait(0.1), by="100%", check=lambda x: x + 1)
    assert found["f"].correct

def slow(x):
    return wait(0.5)(x)

def test_slower(assert_not_slower):
    assert_not_slower(slow, x, than=wait(0.1), by="50%")

def test_wrong(assert_not_slower):
    assert_not_slower(wait(0.1), x, than=wait(0.1), by="50%", check=lambda x: x + 2)

def test_unknown(assert_not_slower):
    assert_not_slower(wait(0.1), torch.zeros(8), than=wait(0.1), by="50%", check=lambda x: x + 1)

def test_raises(assert_not_slower):
    assert_not_slower(wait(0.1), x, than=lambda x: x.nothing)

def test_no_share(assert_not_slower):
    with pytest.raises(ValueError, match='by="3%"'):
        assert_not_slower(wait(0.1), x, than=wait(0.1), by="fast")

def test_bench(bench):
    assert bench(wait(0.1), x, max_s=0.2).us > 90
    assert [one.name for one in bench({"<script>": wait(0.1), "b": wait(0.1)}, x, max_s=0.2)] == ["<script>", "b"]
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """``session("--runner-cpu")``: what pytest printed of the tests above with these options, and their folder."""
    folder = tmp_path_factory.mktemp("users")
    (folder / "test_mine.py").write_text(TESTS)

    def run(*options: str):
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "kernel_runner.api.pytest_plugin",
            "-p",
            "no:cacheprovider",
        ]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "NO_COLOR": "1"}
        environment.pop("PYTEST_ADDOPTS", None)
        done = subprocess.run(
            [*words, *options, "test_mine.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr, folder

    return run


@pytest.fixture(scope="module")
def on_cpu(session):
    return session("--runner-cpu", "--runner-html=page.html")


def test_a_slower_and_a_wrong_function_fail_with_the_table(on_cpu):
    printed, _ = on_cpu
    assert "4 failed, 3 passed" in printed, printed
    assert re.search(r"slow is slower than function by more than 50%: it takes \d\.\d+x as long \(\d", printed)
    assert re.search(r"^ +slow +\d+(\.\d+)? us .* slower", printed, re.MULTILINE), printed
    assert "the outputs are wrong: " in printed
    assert "<lambda>: error: AttributeError: 'Tensor' object has no attribute 'nothing'" in printed
    assert "Traceback (most recent call last)" in printed
    assert "right or wrong is unknown: a constant would pass: give inputs" in printed


def test_a_ratio_without_an_interval_can_be_told():
    assert pytest_plugin._ratio(SimpleNamespace(speedup=0.5, speedup_low=None, speedup_high=None)) == (
        "it takes 2.000x as long (no interval)"
    )


def test_the_page_has_the_comparisons_with_every_text_escaped(on_cpu):
    pytest.importorskip("vl_convert")
    page = (on_cpu[1] / "page.html").read_text()
    assert "test_mine.py::test_slower" in page
    assert "&lt;script&gt;" in page


def test_without_a_gpu_they_are_skipped_with_the_reason(session):
    printed, _ = session("-rs")
    assert "7 skipped" in printed
    assert "torch sees no NVIDIA GPU here; --runner-cpu runs this test on a CPU" in printed


def test_each_result_is_saved_as_a_run(session):
    printed, folder = session("--runner-cpu", "--runner-save", "--runner-output-dir=runs", "-k", "test_bench")
    assert "1 passed" in printed
    one, two = sorted(
        (read_run(path.parent) for path in folder.glob("runs/*/*/rows.jsonl")), key=lambda run: len(run.rows)
    )
    assert [len(one.rows), len(two.rows)] == [1, 2]
    assert one.plan.name == two.plan.name == "test_mine.py-test_bench"
    assert [row.case.impl.name for row in two.rows] == ["<script>", "b"]


@pytest.mark.parametrize("option", ["--runner-html=page.html", "--runner-save"])
def test_a_page_is_refused_beside_workers_that_measure_at_the_same_time(session, option):
    pytest.importorskip("xdist")
    printed, _ = session("-n2", option)
    assert f"{option.partition('=')[0]}: leave out -n, whose processes would measure at the same time" in printed
