"""Sizes at which a public task needs little memory, and the operation that it is at these."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import get_context
from typing import Any

from runner.records.case import Choice
from runner.subject.operation import workload_of
from runner.tasks import own_file

USUAL = {"dtype": None, "tf32": False, "pass": "fwd", "layout": "contiguous"}
LEAST = 2  # of a size


def operation(path: str, fields: Mapping[str, Any]) -> Any:
    """Return the operation of the task in the file ``path`` with these sizes."""
    return workload_of(Choice(path, {"path": path, **USUAL, **fields}))


def smaller(file: own_file.OwnFile, limit: int) -> dict[str, Any]:
    """Return values of the fields with which the task needs at most ``limit`` bytes, or as few as can be found.

    They are found in another process, since torch may end it: then once more in a new one, as an earlier task may have
    been the cause.
    """
    for _ in range(2):
        try:
            return _process().submit(_smaller, file.path, limit).result()
        except BrokenProcessPool:
            _process.cache_clear()
    return dict(file.fields)


@cache
def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"))


def _smaller(path: str, limit: int) -> dict[str, Any]:
    file = own_file.read(path, strict=False)
    fields = dict(file.fields)
    frozen: set[str] = set()
    size = _bytes(file, fields)
    while size is None or size > limit:
        largest = {name: _largest(value) for name, value in fields.items() if name not in frozen}
        name = max(largest, key=lambda each: largest[each], default="")
        if not name or largest[name] <= LEAST:
            return fields
        alike = [each for each in largest if largest[each] == largest[name]]  # which may have to stay equal
        for names in ([name], alike):
            tried = fields | {each: _halved(fields[each]) for each in names}
            now = _bytes(file, tried)
            if now is not None and (size is None or now < size):
                fields, size = tried, now
                break
        else:
            frozen.add(name)
    return fields


def _bytes(file: own_file.OwnFile, fields: Mapping[str, Any]) -> int | None:
    """Return the bytes of inputs, weights and outputs; None if the task does not run so on tensors without memory."""
    try:
        inputs, outputs, _ = operation(file.path, fields).needed("cpu")
    except Exception:
        return None
    return inputs + outputs


def _largest(value: object) -> int:
    numbers = [number for number in (value if isinstance(value, tuple) else [value]) if type(number) is int]
    return max(numbers, default=0)


def _halved(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_halved, value))
    return max(LEAST, value // (4 if value > 256 else 2)) if type(value) is int and value > LEAST else value
