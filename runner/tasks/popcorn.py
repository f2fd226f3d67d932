"""Tasks of GPU MODE: ``task.yml``, with ``reference.py`` beside it.

    inputs(sizes...) -> (generate_input(sizes..., seed),)       # one argument, ``data``
    reference(data) -> ref_kernel(data)
    check(inputs, outputs) -> what check_implementation(data, output) says

``tests`` and ``benchmarks`` are sets of shapes.
"""

import ast
from collections.abc import Collection
from pathlib import Path
from typing import Any

from .syntax import names_in, parameters

ONE_FILE = """
def inputs({fields}*, seed): return (generate_input({given}),)
def reference(data): return ref_kernel(data)
reference.of_module = None

def check(inputs, outputs):
    said = check_implementation(inputs[0], outputs)
    if not isinstance(said, tuple | list | str | None):
        raise TypeError(f"check_implementation returned a {{type(said).__name__}}; return (right, reason)")
    right, reason = said if isinstance(said, tuple) else (not said, said)
    return None if right else str(reason or "check_implementation of the task refuses it")
shapes = {sets!r}
"""


def reference_of(path: Path) -> Path:
    """Return the file with the reference of a task."""
    return next((file for file in _files(path) if file.name == "reference.py"), path.with_name("reference.py"))


def folders_of(place: Path) -> list[Path]:
    """Return the folders of the files of the task in ``place``, if there is one: their modules import each other."""
    path = place / "task.yml"
    return [place, *(file.parent for file in _files(path))] if path.is_file() else []


def _files(path: Path) -> list[Path]:
    sources = [str(file.get("source", "@")) for file in _read(path).get("files") or [] if isinstance(file, dict)]
    return [(path.parent / source).resolve() for source in sources if not source.startswith("@")]


def text_of(path: Path, tree: ast.Module, reserved: Collection[str]) -> str:
    """Return the text that makes ``tree``, of the reference, a workload in one file. Raises OSError, ValueError.

    A field has the name of its key in the tests, after ``task_`` if that is ``reserved``.
    """

    def named(case: dict[str, Any]) -> dict[str, Any]:
        return {f"task_{key}" if key in reserved else key: value for key, value in case.items() if key != "seed"}

    task = _read(path)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    names = {*functions, *names_in(tree)}
    if lacking := [name for name in ("generate_input", "ref_kernel", "check_implementation") if name not in names]:
        raise ValueError(f"{reference_of(path).name} defines no {', '.join(lacking)}")
    sets = {name: [*map(named, task.get(name) or [])] for name in ("tests", "benchmarks")}
    first: dict[str, Any] = next((case for name in sets for case in task.get(name) or []), {})
    made_by = functions.get("generate_input")
    taken = {each.arg: default for each, default in parameters(made_by)} if made_by else {}
    if unknown := [name for name, default in taken.items() if not default and name not in {*first, "seed"}]:
        why = "; tasks for several GPUs do not run" * ("rank" in unknown)
        raise ValueError(f"generate_input needs {', '.join(unknown)}, which no test of {path.name} gives{why}")
    fields = named(first)
    given = [f"{key}={field}" for key, field in zip((key for key in first if key != "seed"), fields, strict=True)]
    return ONE_FILE.format(
        fields="".join(f"{name}={value!r}, " for name, value in fields.items()),
        given=", ".join([*given, *["seed=seed"] * ("seed" in taken)]),
        sets={name: cases for name, cases in sets.items() if cases},
    )


def _read(path: Path) -> dict[str, Any]:
    import yaml  # which a program with torch alone may lack

    try:
        task = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML: {str(error).splitlines()[0]}") from None
    return task if isinstance(task, dict) else {}
