"""Every benchmark can be started: most need a GPU, so a name of ours that has gone would else show there alone."""

from __future__ import annotations

import ast
from importlib import import_module

import pytest

from benchmarks.common import ROOT
from runner.config import plan

MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / "benchmarks").rglob("*.py")}
# A script is a module, or a folder with a __main__.py, that is started by itself.
SCRIPTS = sorted(name for name, path in MODULES.items() if '__name__ == "__main__"' in path.read_text())


def owner(module: str) -> str:
    """The script that a module is a part of."""
    return next((s for s in SCRIPTS if module.startswith(f"{s.removesuffix('.__main__')}.") or module == s), module)


@pytest.mark.parametrize("script", SCRIPTS)
def test_all_that_it_imports_is_there(script):
    pytest.importorskip("triton")
    import_module(script)


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_imports_no_other_script(script):
    parts = [path for name, path in MODULES.items() if owner(name) == script]
    nodes = [node for path in parts for node in ast.walk(ast.parse(path.read_text()))]
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    assert not {name for name in imported if name in MODULES and owner(name) in SCRIPTS and owner(name) != script}


def test_there_are_scripts_in_five_folders():
    assert {name.split(".")[1] for name in SCRIPTS} == {"kernels", "profilers", "runner", "subject", "timer"}
    assert len(SCRIPTS) >= 15


def test_the_parts_of_a_case_that_timer_accuracy_times_are_there():
    pytest.importorskip("triton")
    from benchmarks.timer.timer_accuracy import PIECES

    missing = [name for name, (owner, attribute) in PIECES.items() if not hasattr(owner, attribute)]
    assert not missing


def commands():
    """The runs that scripts start, with the number of their cases."""
    from benchmarks.kernels import lecture
    from benchmarks.profilers import agreement
    from benchmarks.runner import grid_cost, precompile, scaling

    yield lecture.WORDS, len(lecture.PUBLISHED_MS)
    yield [*agreement.GRID, "measure=[benchmark,profile,nsys,ncu]"], 10
    yield grid_cost.words(100), 200
    yield [*grid_cost.words(2), *grid_cost.BARE], 4
    yield scaling.words(4, [0]), 4
    yield precompile.words("all"), 64


def test_the_commands_compose():
    pytest.importorskip("triton")
    for words, count in commands():
        assert len(plan(words).cases) == count, words
