"""The packages of docs/design.md: a module imports packages below its own, without circles, and --help stays light."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The page prints these lines. Packages on one line do not import each other.
PACKAGES = """
cli
api
report execute
findings
config worker
store
subject
measure implementations
models
timing
device
tasks
records
kernels
"""

LEVEL = {package: level for level, line in enumerate(PACKAGES.split("\n")) for package in line.split()}
HEAVY = {"torch", "triton", "pandas", "wandb"}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in [
        *(ROOT / "runner").rglob("*.py"),
        *(ROOT / "runner" / "kernels").rglob("*.py"),  # a link, which rglob does not follow by itself
        *(ROOT / "runner" / "models").rglob("*.py"),
    ]
}
DOTTED = re.compile(r"""["'](?:kernel_)?(runner(?:\.\w+)+)["']""")  # a string that names a module
STATEMENTS = ("body", "orelse", "handlers", "finalbody", "cases")  # the parts of a node that hold statements


@cache
def tree_of(name: str) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@cache
def imported(name: str, *, at_top: bool = False, typed: bool = True) -> tuple[str, ...]:
    """The modules that ``name`` imports or names in a string; ``at_top``: those that importing it imports.

    Without ``typed``, imports for types alone, which never run, are left out.
    """
    imports = tuple(_imports(tree_of(name), name, at_top, typed and not at_top))
    named = () if at_top else DOTTED.findall(MODULES[name].read_text(encoding="utf-8"))
    return (*imports, *(module for module in named if module in MODULES))


def _imports(node: ast.AST, name: str, at_top: bool, typed: bool) -> Iterator[str]:
    for child in (child for part in STATEMENTS for child in getattr(node, part, ())):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            module = _absolute(child, name)
            yield from (_module(f"{module}.{alias.name}", module) for alias in child.names)
        elif at_top and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        elif not typed and isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from (found for other in child.orelse for found in _imports(other, name, at_top, typed))
        else:
            yield from _imports(child, name, at_top, typed)


def _absolute(node: ast.ImportFrom, name: str) -> str:
    """The module that ``node`` of module ``name`` imports from."""
    if not node.level:
        return str(node.module)
    package = name.split(".") if MODULES[name].name == "__init__.py" else name.split(".")[:-1]
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def _module(full: str, parent: str) -> str:
    return full if full in MODULES else parent


def package(module: str) -> str | None:
    """``runner.execute.local`` is in the package ``execute``; ``runner`` and ``runner.__main__`` are in none."""
    top, *rest = module.split(".")
    return rest[0] if top == "runner" and rest and rest[0] in LEVEL else None


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
    fixed = ["runner.__main__", "runner.cli", "runner.cli._interrupts", "runner.cli.plan"]
    compose = [name for name in MODULES if name.startswith("runner.config")]
    return sorted([*fixed, *compose, *(name for name in options if name in MODULES)])


def test_every_module_is_in_a_package():
    assert {package(name) for name in MODULES} - {None} == set(LEVEL)
    assert {name for name in MODULES if package(name) is None} == {"runner", "runner.__main__"}


def test_a_module_imports_its_own_package_and_packages_below():
    pairs = [(name, other) for name in MODULES for other in imported(name)]
    named = [(name, package(name), other, package(other)) for name, other in pairs]
    upwards = [one for one in named if one[1] and one[3] and one[1] != one[3] and LEVEL[one[3]] <= LEVEL[one[1]]]
    assert not upwards, "these modules import what is not below them"


def circles() -> list[list[str]]:
    """Modules that import each other, in whatever way: strongly connected components, by Tarjan's algorithm."""
    after = {
        name: sorted({other for other in imported(name, typed=False) if other in MODULES} - {name, "runner"})
        for name in MODULES
    }
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def connect(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in after[name]:
            if other not in index:
                connect(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            found.extend([sorted(group)] if group[1:] else [])

    for name in MODULES:
        if name not in index:
            connect(name)
    return found


def test_no_modules_import_each_other():
    assert circles() == []


def test_no_package_has_a_name_of_one_of_its_modules():
    """``runner.x.y`` under its second name sets ``y`` of the package to the module."""
    for name, path in MODULES.items():
        if path.name != "__init__.py" or name == "runner":
            continue
        inside = {other.rpartition(".")[2] for other in MODULES if other.rpartition(".")[0] == name}
        bound = {node.name for node in tree_of(name).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        imports = [node for node in tree_of(name).body if isinstance(node, ast.ImportFrom) and node.module]
        bound |= {alias.asname or alias.name for node in imports for alias in node.names}
        assert not inside & bound, name


def test_a_kernel_can_be_lifted_out():
    absolute = {
        (name, root.partition(".")[0])
        for name in MODULES
        if package(name) == "kernels"
        for node in ast.walk(tree_of(name))
        for root in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    }
    assert not [
        one for one in absolute if one[1] in {"runner", "kernel_runner", "kernels", "models", "hydra", "omegaconf"}
    ]


def test_hydra_stops_at_config():
    outside = [name for name in MODULES if not name.startswith("runner.config")]
    assert not [
        (name, other)
        for name in outside
        for other in imported(name)
        if other.partition(".")[0] in {"hydra", "omegaconf"}
    ]


def test_nothing_heavy_is_imported_on_the_way_to_help():
    on_the_way = [(name, other) for name in on_the_way_to_help() for other in reached(name)]
    assert len(on_the_way) > 100
    assert not [one for one in on_the_way if one[1].partition(".")[0] in HEAVY]


def test_the_walk_finds_what_it_looks_for():
    assert "torch" in reached("runner.worker")
    assert "torch" in reached("runner.timing.nested")
    assert "runner.models.workload" in reached("runner.models.gelu")
    assert "torch" not in reached("runner.models.gelu")  # there under TYPE_CHECKING alone


def test_the_page_draws_the_same_packages():
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    drawn = re.search(r"<!-- packages -->\n```text\n(.*?)```", page, re.DOTALL)
    assert drawn
    assert [line.split() for line in drawn[1].splitlines()] == [line.split() for line in PACKAGES.strip().splitlines()]
