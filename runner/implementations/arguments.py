"""A kernel's own arguments: keyword arguments of its function besides the workload's options, such as ``BLOCK``.

A signature is read from the source, so that a mistake is found before torch is imported or a file is run. The
meta-parameters of an autotuned Triton kernel are arguments too: a value keeps the configurations that have it.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from symtable import symtable
from types import ModuleType
from typing import Any

from ..device.used_paths import stamp
from ..kernels.unsupported import Unsupported
from ..records.case import Scalar
from ..records.figures import as_words
from ..records.grouping import reachable
from ..tasks import formats, own_file
from ..tasks.syntax import assigned, decorators, names_in, parameters

LAUNCH = ("num_warps", "num_stages", "num_ctas", "maxnreg")  # fields of a triton.Config, besides its meta-parameters

SCOPES = (ast.FunctionDef, ast.ClassDef, ast.Lambda)
DYNAMIC = {"exec", "eval", "globals", "locals", "vars", "setattr"}  # functions that may bind any name


def of_function(file: Path, name: str) -> dict[str, str]:
    """Return the keyword arguments of the function ``name`` in ``file`` with a default, without tensors.

    Each has the source of its default, "" if the function is defined twice. Empty if the file is missing or defines the
    function neither with ``def`` nor by ``cuda_kernel``.
    """
    call = launched(file).get(name)
    given = [word for word in call.keywords if word.arg not in own_file.LAUNCH] if call else []
    keywords = {word.arg: ast.unparse(word.value) for word in given if word.arg}
    for function in (function for function in functions(file) if function.name == name):
        for parameter, default in parameters(function):
            annotation = ast.unparse(parameter.annotation) if parameter.annotation else ""
            if default and parameter not in function.args.posonlyargs and "Tensor" not in annotation:
                keywords[parameter.arg] = "" if parameter.arg in keywords else ast.unparse(default)
    constants = {name: ast.unparse(value) for node in _parsed(file).body for name, value in assigned(node) if value}
    return {name: constants.get(text, text) for name, text in keywords.items()}


def launched(file: Path) -> dict[str, ast.Call]:
    """Return the calls ``name = cuda_kernel(...)`` of ``file``, by the name."""
    nodes = own_file.named(_parsed(file))
    calls = ((name, node.value) for name, node in nodes.items() if isinstance(node, ast.Assign))
    return {name: call for name, call in calls if isinstance(call, ast.Call)}


def of_autotuned(file: Path) -> list[str]:
    """Return the meta-parameters of the autotuned kernels in ``file``: parameters annotated as constexpr."""
    tuned = [function for function in functions(file) if "autotune" in decorators(function)]
    every = [parameter for function in tuned for parameter, _ in parameters(function)]
    meta = [each.arg for each in every if "constexpr" in ast.unparse(each.annotation or each)]
    return list(dict.fromkeys([*meta, *LAUNCH])) if tuned else []


def names(file: Path) -> set[str] | None:
    """Return the names that ``file`` binds at its top level; None if only running it tells, as after ``import *``."""
    try:
        return _names(file, stamp(str(file)))
    except (OSError, SyntaxError, ValueError):  # reported where the file is loaded
        return None


@lru_cache(maxsize=64)
def _names(file: Path, _stamp: str) -> set[str] | None:
    tree = formats.parse(file).tree
    bound, _ = global_names(tree)
    has_star = any(isinstance(node, ast.alias) and node.name == "*" for node in ast.walk(tree))
    return None if has_star or "__getattr__" in bound or names_in(tree) & DYNAMIC else bound


def global_names(node: ast.AST) -> tuple[set[str], set[str]]:
    """Return the global names that ``node``, a file or a statement at its top level, binds, and those that it reads.

    Raises SyntaxError.
    """
    tables = [symtable(ast.unparse(node), "", "exec")]
    bound = {symbol.get_name() for symbol in tables[0].get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    for table in tables:
        tables += table.get_children()
    symbols = (symbol for table in tables for symbol in table.get_symbols())
    return bound, {symbol.get_name() for symbol in symbols if symbol.is_referenced() and symbol.is_global()}


def functions(file: Path) -> Iterator[ast.FunctionDef]:
    """Return the functions at the top level of ``file``, including functions under ``if`` or ``try``."""
    tree: ast.AST = _parsed(file)
    nodes = reachable([tree], lambda node: () if isinstance(node, SCOPES) else ast.iter_child_nodes(node))
    return (node for node in nodes if isinstance(node, ast.FunctionDef))


def defined(file: Path) -> list[str]:
    """Return the names of the functions and classes of ``file``; names with a leading ``_`` are last."""
    classes = [node.name for node in _parsed(file).body if isinstance(node, ast.ClassDef)]
    named = [*classes, *(function.name for function in functions(file)), *launched(file)]
    return sorted(named, key=lambda name: name.startswith("_"))


def _parsed(file: Path) -> ast.Module:
    try:
        return _tree(file, stamp(str(file)))
    except (OSError, SyntaxError, ValueError):  # reported where the file is loaded
        return ast.Module([], [])


@lru_cache(maxsize=64)  # a grid asks for each of its cases
def _tree(file: Path, _stamp: str) -> ast.Module:
    return formats.parse(file).tree if file.suffix == ".json" else ast.parse(file.read_bytes())


def pin(module: ModuleType, values: Mapping[str, Scalar]) -> None:
    """Keep the configurations of the autotuned kernels of ``module`` that have ``values``.

    Raises Unsupported if a kernel that has such a meta-parameter has no configuration with these values.
    """
    for name, tuner in undecorated(module):
        if type(tuner).__name__ != "Autotuner":
            continue
        pinned = {key: value for key, value in values.items() if any(key in _meta(config) for config in tuner.configs)}
        kept = [config for config in tuner.configs if {key: _meta(config).get(key) for key in pinned} == pinned]
        if not kept:
            text = ", ".join(as_words(pinned))
            choices = _available(pinned, tuner)
            raise Unsupported(f"the autotuned kernel {name} has no configuration with {text}; {choices}")
        tuner.configs = kept
        values = {key: value for key, value in values.items() if key not in pinned}
    if values:
        names = ", ".join(values)
        raise Unsupported(f"no autotuned kernel of {module.__file__} has {names} in its configurations; leave it out")


def undecorated(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the globals of ``module``, and what lies below the decorators of Triton, each with the global's name."""
    for name, member in vars(module).items():
        while type(member).__name__ in ("Autotuner", "Heuristics"):
            yield name, member
            member = getattr(member, "fn", None)
        yield name, member


def _meta(config: Any) -> dict[str, Any]:
    """Return the meta-parameters of a triton.Config, including the parameters of the launch."""
    return {**{name: getattr(config, name) for name in LAUNCH if hasattr(config, name)}, **config.kwargs}


def _available(keys: Iterable[str], tuner: Any) -> str:
    """Return the values in the configurations, as in ``they have BLOCK_M=64, 128``."""

    def order(value: object) -> tuple[float, str]:
        return (value if isinstance(value, int | float) else 0.0, str(value))

    values = {key: sorted({_meta(config).get(key) for config in tuner.configs}, key=order) for key in keys}
    return "they have " + "; ".join(f"{key}={', '.join(map(str, present))}" for key, present in values.items())
