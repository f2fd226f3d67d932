"""The rooms of docs/design.md hold: a module imports from rooms below its own, and the way to --help stays light."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The page prints these lines; rooms of one line do not import each other.
ROOMS = """
__main__
cli
doctor
launch log
report session
compose worker verify
resume rescue
journal run_dir fingerprint
check faults hardware impl measure
models row rounds schema options certificate labels
tool
kernels case errors child cache identity redact capture debug columns importing
"""

LEVEL = {room: level for level, line in enumerate(ROOMS.split("\n")) for room in line.split()}
PACKAGES = ("runner", "models", "kernels")
HEAVY = {"torch", "triton", "pandas", "wandb"}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
}


def imported(name: str, *, at_top: bool = False) -> Iterator[str]:
    """What module ``name`` imports, wherever in it; ``at_top``: only what importing it sets off."""
    yield from _imports(ast.parse(MODULES[name].read_text(encoding="utf-8")), at_top)


def _imports(node: ast.AST, at_top: bool) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute here"
            yield from (_module(f"{child.module}.{alias.name}", str(child.module)) for alias in child.names)
        elif at_top and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        elif at_top and isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from (name for other in child.orelse for name in _imports(other, at_top))
        else:
            yield from _imports(child, at_top)


def _module(full: str, parent: str) -> str:
    return full if full in MODULES else parent


def room(module: str) -> str | None:
    """``runner.execute.local`` is in room ``launch``; the package ``runner`` itself is in none."""
    package, *rest = module.split(".")
    if package != "runner":
        return package
    return rest[0] if rest else None


@cache
def reached(start: str) -> frozenset[str]:
    """Everything that importing ``start`` imports."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in MODULES:
            waiting += [name.rpartition(".")[0]] if "." in name else []
            waiting += imported(name, at_top=True)
    return frozenset(seen)


def on_the_way_to_help() -> list[str]:
    """The command line, composing, and the class behind every option of ``conf/``, which the schema looks at."""
    groups = {
        "workload": "runner.models",
        "impl": "runner.implementations",
        "measure": "runner.measure",
        "launcher": "runner.execute",
    }
    groups["log"] = "runner.report"
    options = [
        f"{groups[path.parent.name]}.{path.stem}" for group in groups for path in ROOT.glob(f"conf/{group}/*.yaml")
    ]
    fixed = ["runner.__main__", "runner.cli", "runner.cli.run", "runner.cli.plan"]
    compose = [name for name in MODULES if name.startswith("runner.config")]
    return sorted([*fixed, *compose, *(name for name in options if name in MODULES)])


def test_every_module_stands_in_a_room():
    assert {room(name) for name in MODULES} - {None} == set(LEVEL)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_its_own_room_and_rooms_below(name):
    own = room(name)
    for other in imported(name):
        theirs = room(other) if other.partition(".")[0] in PACKAGES else None
        if own is None or theirs is None or theirs == own:
            continue
        assert LEVEL[theirs] > LEVEL[own], f"{name} ({own}) imports {other} ({theirs}), which is not below it"


@pytest.mark.parametrize("name", [name for name in sorted(MODULES) if name.startswith("kernels")])
def test_a_kernel_can_be_lifted_out(name):
    roots = {other.partition(".")[0] for other in imported(name)}
    assert not roots & {"runner", "models", "hydra", "omegaconf"}


@pytest.mark.parametrize("name", [name for name in sorted(MODULES) if not name.startswith("runner.config")])
def test_hydra_stops_at_compose(name):
    assert not {other.partition(".")[0] for other in imported(name)} & {"hydra", "omegaconf"}


@pytest.mark.parametrize("name", on_the_way_to_help())
def test_nothing_heavy_is_imported_on_the_way_to_help(name):
    heavy = sorted(other for other in reached(name) if other.partition(".")[0] in HEAVY)
    assert not heavy, f"importing {name} imports {', '.join(heavy)}"


def test_the_walk_finds_what_it_looks_for():
    assert "torch" in reached("runner.worker")
    assert "torch" in reached("runner.timing.outputs")
    assert "runner.models.workload" in reached("runner.models.gelu")
    assert "torch" not in reached("runner.models.gelu")  # there under TYPE_CHECKING alone


def test_the_page_draws_the_same_rooms():
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    drawn = re.search(r"<!-- rooms -->\n```text\n(.*?)```", page, re.DOTALL)
    assert drawn
    assert [line.split() for line in drawn[1].splitlines()] == [line.split() for line in ROOMS.strip().splitlines()]
