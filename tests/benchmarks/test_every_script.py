"""Every benchmark can be started: most need a GPU, so a name of ours that has gone would else show there alone."""

from __future__ import annotations

from importlib import import_module

import pytest

from benchmarks.common import ROOT

SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("script", SCRIPTS)
def test_all_that_it_imports_is_there(script):
    pytest.importorskip("triton")
    import_module(f"benchmarks.{script}")


def test_the_parts_of_a_case_that_timer_accuracy_times_are_there():
    pytest.importorskip("triton")
    from benchmarks.timer_accuracy import PIECES

    missing = [name for name, (owner, attribute) in PIECES.items() if not hasattr(owner, attribute)]
    assert not missing
