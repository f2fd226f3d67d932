"""Kernels on every device they run on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from runner.kernels import launch
from runner.kernels.unsupported import Unsupported

# Implementations that call kernels of other projects, and words of the reasons for which their tests are skipped.
OTHERS = {"cudnn": "", "fa4": "", "liger": "", "quack": "", "torchao": "", "numba": "NumPy"}
ANYWHERE = ("online", "math", "flash", "unquantized", "identity")  # in operations of torch
HERE = Path(__file__).parent

# Before Triton 3.4 there are no kernels that multiply, and what compiles for a GPU elsewhere was called otherwise.
if importlib.util.find_spec("triton"):
    TRITON = tuple(map(int, importlib.metadata.version("triton").split(".")[:2]))
    COMPILED = ("attention", "cuda", "hopper", "long", "matmul", "matmul_roles", "split_triton", "training", "triton")
    MULTIPLY = ("attention_triton", "beyond_32_bits_triton", "matmul_triton", "mlp_in_triton", "split_triton", "traced")
    NEW = [f"test_compiled_{name}.py" for name in COMPILED] + [f"test_{name}.py" for name in MULTIPLY]
    collect_ignore = NEW if TRITON < (3, 4) else []

    if os.environ.get("TRITON_INTERPRET") == "1" and TRITON >= (3, 7):
        # Two changes take three fifths from the time of these tests. The interpreter patches Triton's language at each
        # call of a device function, although the launch has patched it: here it does so once. And it reduces by a
        # function of the kernel one element after the other: here it combines all pairs of neighbours at once.
        from triton.runtime import interpreter

        LANGUAGES = (interpreter.tl, interpreter.tl.core)
        put = interpreter._patch_lang

        def put_once(function: Callable[..., object]) -> object:
            seen = [one for one in LANGUAGES if any(value is one for value in function.__globals__.values())]
            if seen and not any(interpreter.tl.core.is_builtin(language.load) for language in seen):
                return interpreter._LangPatchScope()  # which restores nothing
            return put(function)

        interpreter._patch_lang = put_once

        def by_pairs(reduction: Any, values: tuple[Any, ...]) -> list[Any]:
            axis = reduction.axis
            parts = [value.handle.data for value in values]
            while parts[0].shape[axis] > 1:  # a power of 2
                shape = list(parts[0].shape)
                shape[axis : axis + 1] = [shape[axis] // 2, 2]
                sides = [
                    reduction.to_tensor(part.reshape(shape).take(side, axis + 1), value.dtype)
                    for side in (0, 1)
                    for part, value in zip(parts, values, strict=True)
                ]
                combined = reduction.combine_fn.fn(*sides)
                combined = combined if isinstance(combined, tuple) else (combined,)
                parts = [one.handle.data.reshape([*shape[: axis + 1], *shape[axis + 2 :]]) for one in combined]
            if not reduction.keep_dims:
                parts = [part.squeeze(axis) for part in parts]
            return [reduction.to_tensor(part, value.dtype) for part, value in zip(parts, values, strict=True)]

        interpreter.ReduceOps.generic_reduce = by_pairs


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out a GPU's kernels on a CPU. ``test_under_the_interpreter`` runs those in Triton, in another process."""
    if out := [item for item in items if item.path.is_relative_to(HERE) and _needs_gpu(item)]:
        left = set(out)
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=out)


def _needs_gpu(item: pytest.Item) -> bool:
    chosen = item.callspec.params if hasattr(item, "callspec") else {}
    runs = ("naive", "torch", "triton") if os.environ.get("TRITON_INTERPRET") == "1" else ("naive", "torch", *ANYWHERE)
    return chosen.get("device") == "cpu" and chosen.get("impl", "torch") not in runs


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@pytest.fixture
def load(request, device):
    """``load("gelu", "triton")``: the function, or a skip where ``device`` is not for it."""

    def find(op, impl):
        if impl == "triton" and device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            assert "triton" in request.node.nodeid, "that file finds its tests by this word in their names"
            pytest.skip("test_under_the_interpreter.py runs this one")
        if impl == "triton":
            pytest.importorskip("triton")
        if impl not in ("naive", "torch", "triton") and device == "cpu":
            pytest.skip("a GPU kernel")
        try:
            function = getattr(import_module(f"runner.kernels.{op}.{impl}"), op)
        except Unsupported as missing:  # the package of an extra
            pytest.skip(str(missing))
        if impl in OTHERS:
            return _or_skip(function, OTHERS[impl])
        return function if device == "cpu" else _planned(function)

    return find


def _planned(function: Callable[..., object]) -> Callable[..., object]:
    """Return ``function``, called twice: the first call may record a plan, and the second one launches it."""

    @wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        function(*args, **kwargs)
        return function(*args, **kwargs)

    return call


@pytest.fixture(autouse=True)
def plans_of_other_tests_are_forgotten(monkeypatch):
    """A test may replace what a plan depends on."""
    launch.forget()
    yield
    launch.forget()


def _or_skip(function: Callable[..., object], words: str) -> Callable[..., object]:
    """Return ``function`` of another project, which skips the test where a reason with ``words`` speaks against it."""

    def call(*args: object, **kwargs: object) -> object:
        try:
            return function(*args, **kwargs)
        except Unsupported as reason:
            if words in str(reason):
                pytest.skip(str(reason))
            raise

    return call
