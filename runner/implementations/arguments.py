"""A kernel's own arguments: keyword arguments of its function beside the workload's options, such as ``BLOCK``.

A signature is read from the source, so that a mistake is found before torch is imported or a file is run. Where the
kernel of a file is autotuned (``@triton.autotune``), its meta-parameters are arguments too: a value keeps those of its
configurations that have it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from runner.experiment.case import Scalar
from runner.kernels.unsupported import Unsupported

LAUNCH = ("num_warps", "num_stages", "num_ctas", "maxnreg")  # of each triton.Config, beside its meta-parameters
Function = ast.FunctionDef | ast.AsyncFunctionDef


def of_function(file: Path, name: str) -> list[str]:
    """Return the keyword arguments of the function ``name`` in ``file`` that have a default and are no tensors.

    Empty if the file is not there or defines no such function with ``def``.
    """
    return [found for function in _functions(file) if function.name == name for found in _keywords(function)]


def of_autotuned(file: Path) -> list[str]:
    """Return the meta-parameters of the autotuned kernels in ``file``: what their signatures annotate as constexpr."""
    found: dict[str, None] = {}
    for function in _functions(file):
        if any(ast.unparse(one).partition("(")[0].rpartition(".")[2] == "autotune" for one in function.decorator_list):
            given = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
            found |= dict.fromkeys(one.arg for one in given if "constexpr" in ast.unparse(one.annotation or one))
            found |= dict.fromkeys(LAUNCH)
    return list(found)


def _functions(file: Path) -> Iterator[Function]:
    """Yield the functions at the top level of ``file``, also those under ``if`` or ``try``."""
    try:
        waiting: list[ast.AST] = [ast.parse(file.read_bytes())]
    except (OSError, SyntaxError, ValueError):  # reported where the file is loaded
        return
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function):
            yield node
        elif not isinstance(node, ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _keywords(function: Function) -> Iterator[str]:
    arguments = function.args
    positional, defaults = arguments.args, arguments.defaults[-len(arguments.args) :] if arguments.args else []
    with_default = positional[len(positional) - len(defaults) :]
    with_default += [one for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default]
    return (one.arg for one in with_default if one.annotation is None or "Tensor" not in ast.unparse(one.annotation))


def pin(module: ModuleType, values: Mapping[str, Scalar]) -> None:
    """Keep those configurations of the autotuned kernels of ``module`` that have ``values``.

    Raises Unsupported if a kernel that has such a meta-parameter has no configuration with these values.
    """
    for name, tuner in _autotuners(module):
        wanted = {key: value for key, value in values.items() if any(key in _meta(one) for one in tuner.configs)}
        kept = [one for one in tuner.configs if {key: _meta(one).get(key) for key in wanted} == wanted]
        if not kept:
            asked = ", ".join(f"{key}={value}" for key, value in wanted.items())
            raise Unsupported(f"the autotuned kernel {name} has no configuration with {asked}; {_there(wanted, tuner)}")
        tuner.configs = kept
        values = {key: value for key, value in values.items() if key not in wanted}
    if values:
        names = ", ".join(values)
        raise Unsupported(f"no autotuned kernel of {module.__file__} has {names} in its configurations; leave it out")


def _autotuners(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the autotuners among the globals of ``module``, also below other decorators of Triton."""
    for name, member in vars(module).items():
        while type(member).__name__ in ("Autotuner", "Heuristics"):
            if type(member).__name__ == "Autotuner":
                yield name, member
            member = member.fn


def _meta(config: Any) -> dict[str, Any]:
    """Return the meta-parameters of a triton.Config, those of the launch included."""
    return {**{name: getattr(config, name) for name in LAUNCH if hasattr(config, name)}, **config.kwargs}


def _there(wanted: Sequence[str] | Mapping[str, Any], tuner: Any) -> str:
    """Return which values the configurations have, as in ``they have BLOCK_M=64, 128``."""
    values = {key: sorted({_meta(one).get(key) for one in tuner.configs}, key=_order) for key in wanted}
    return "they have " + "; ".join(f"{key}={', '.join(map(str, some))}" for key, some in values.items())


def _order(value: object) -> tuple[float, str]:
    return (value if isinstance(value, int | float) else 0.0, str(value))
