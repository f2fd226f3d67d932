"""Tasks in the form of KernelBench: ``class Model``, ``get_inputs()`` and ``get_init_inputs()``.

MultiKernelBench has the same form. In robust-kbench the sizes are keyword defaults, or come from
``config_forward.json`` beside ``func_forward.py``; ``Model.forward`` takes the function to replace as ``fn``. A task
becomes a workload in one file:

    inputs(sizes...) -> model, *get_inputs()        # the model is made from the seed, and is an input with its weights
    reference(model, *inputs) -> model(*inputs)

The sizes are constants of the module, and parameters with a default. An implementation is a class, as ``ModelNew``,
which gets the weights of the model; a function of the model and the inputs; or, beside ``fn``, a function like it.
"""

import ast
import copy
import itertools
import json
from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .syntax import assigned, constant, names_in, parameters

ONE_FILE = """
def inputs({fields}*, seed):
    globals().update({constants})
    global _init{computed}
    _init = {init}
    model, values = _built(Model, seed), get_inputs({given})
    return (model, *(values if isinstance(values, (list, tuple)) else [values]))

def _built(cls, seed):
    import torch
    torch.manual_seed(seed)
    return cls(**_init) if isinstance(_init, dict) else cls(*_init)

def reference(model, *inputs): return model(*inputs)
reference.of_module = None
"""
REPLACED = """
def _adapted(function):
    return lambda model, *inputs: model(*inputs, fn=function)
"""


def fits(tree: ast.Module) -> bool:
    """Return whether a file has this form."""
    return {"Model", "get_inputs"} <= {getattr(node, "name", "") for node in tree.body}


def sets_of(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the sets of shapes of a task of robust-kbench, none of another one. Raises OSError, ValueError."""
    config = path.with_name(f"config_{path.stem.removeprefix('func_')}.json")
    if not path.stem.startswith("func_") or not config.is_file():
        return {}
    given = json.loads(config.read_text(encoding="utf-8"))
    listed = [*given.values()] if isinstance(given, dict) else [None]
    if not all(isinstance(cases, list) and all(isinstance(case, dict) for case in cases) for cases in listed):
        raise ValueError(f"{config.name} is not a mapping of lists of mappings, as in robust-kbench")
    sets = {}
    for name in ("single", "multi"):
        parts = [given.get(f"{name}_{part}_configs") or [{}] for part in ("input", "init", "shared")]
        sets[name] = [dict(ChainMap(*case)) for case in itertools.product(*parts)]
    return {name: cases for name, cases in sets.items() if any(cases)}


def one_file(tree: ast.Module, reserved: tuple[str, ...], first: Mapping[str, Any]) -> ast.Module:
    """Return the task in the form of a workload in one file. No field has a ``reserved`` name.

    ``first``: values that replace defaults.
    """
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    model = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model")
    methods = {node.name: node for node in model.body if isinstance(node, ast.FunctionDef)}
    init = functions.get("get_init_inputs")
    made_by = init or methods.get("__init__")
    values = {name: value for name, value in _constants(tree) if name not in reserved}
    keywords = [dict(_keywords(node, first)) for node in (functions["get_inputs"], made_by) if node]
    defaults = {name: value for each in reversed(keywords) for name, value in each.items() if value is not None}
    computed = _recomputed(tree, set(values))
    follow = dict.fromkeys(name for node in computed for name, _ in assigned(node))
    taken = {*reserved, *values, *follow}
    fields = values | {name: value for name, value in defaults.items() if name not in taken}
    given, to_model = (_passed(each, fields, values) for each in [*keywords, {}][:2])
    text = ONE_FILE.format(
        fields="".join(f"{name}={value!r}, " for name, value in fields.items()),
        constants=", ".join(
            f"{name}=list({name})" if isinstance(value, list) else f"{name}={name}" for name, value in values.items()
        ),
        computed="".join(f", {name}" for name in follow),
        init=f"get_init_inputs({to_model})" if init else f"dict({to_model})",
        given=given,
    )
    text += REPLACED if "fn" in [each.arg for each, _ in parameters(methods["forward"])] else ""
    added = ast.parse(text).body
    function = added[0]
    assert isinstance(function, ast.FunctionDef)
    function.body[2:2] = copy.deepcopy(computed)
    last = max((node.end_lineno or 1) for node in tree.body)
    for node in (inner for outer in added for inner in ast.walk(outer) if hasattr(inner, "lineno")):
        node.lineno = node.end_lineno = last  # type: ignore[attr-defined]
    return ast.Module([*tree.body, *added], tree.type_ignores)


def _constants(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield the constants of the module that something reads, with their last values."""
    read = names_in(tree, ast.Load)
    last = {name: value for node in tree.body for name, value in assigned(node) if not name.startswith("_")}
    for name, value in last.items():
        try:
            if value is not None and name in read:
                yield name, constant(value)
        except ValueError:
            continue


def _recomputed(tree: ast.Module, changed: set[str]) -> list[ast.stmt]:
    """Return the assignments of the module whose values follow from constants that a case may change."""
    found = []
    for node in tree.body:
        names = {name for name, _ in assigned(node)}
        if names and not names & changed and names_in(node) & changed:
            found.append(node)
            changed = changed | names
    return found


def _keywords(node: ast.FunctionDef, first: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a function, each with its value in ``first`` or its default, None if it has neither."""
    for parameter, default in parameters(node):
        if parameter.arg in first:
            yield parameter.arg, first[parameter.arg]
        elif parameter.arg != "self":
            try:
                yield parameter.arg, constant(default) if default else None
            except ValueError:
                continue


def _passed(keywords: Mapping[str, Any], fields: Mapping[str, Any], constants: Mapping[str, Any]) -> str:
    """Return the arguments of a call: fields of these names. Other defaults than the field's are left as they are."""
    named = [name for name, value in keywords.items() if name in fields and name not in constants]
    return ", ".join(f"{name}={name}" for name in named if keywords[name] in (None, fields[name]))
