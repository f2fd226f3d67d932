"""``runner tune`` of a user's own function on a CPU: what it prints, and the experiment that it writes."""

from __future__ import annotations

import re
import subprocess

FUNCTION = """
def add(a, b, *, times=40):
    if times > 40:
        raise ValueError("too often")
    for _ in range(times):
        y = a + b
    return y
"""
FAST = ["measure.benchmark.samples=20", "measure.benchmark.max_s=0.1", "measure.benchmark.warmup_s=0"]


def test_the_fastest_argument_is_found_and_how_to_run_it(command, tmp_path):
    (tmp_path / "k.py").write_text(FUNCTION)
    grid = ["workload=add", "workload.rows=64", "workload.cols=1000", "impl=file", "impl.path=k.py:add", "device=cpu"]
    words, options = command(*grid, *FAST, "impl.args.times=1,99")
    place = words.index("runner") + 1
    done = subprocess.run(
        [*words[:place], "tune", *words[place:]],
        capture_output=True, encoding="utf-8", timeout=300, check=False, **options,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *_, by_fields = found = done.stdout.splitlines()
    # "among" where the machine is too busy for the race to drop the default
    assert re.search(r"^tune: add: file\(times=1\), (among )?the fastest of 3$", done.stdout, re.MULTILINE)
    assert done.stdout.count("add on cpu") == 1
    assert "  left out: file(times=99): error: ValueError: too often" in found
    assert "impl.path=k.py:add impl.args.times=1 " in by_fields
