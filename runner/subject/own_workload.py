"""A workload in a user's file, as a plan sees it: its fields. ``operation`` runs it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

from ..models.layout import Layout
from ..models.workload import Size
from ..records.case import Choice
from ..records.options import option_class
from ..tasks import own_file
from ..tasks.own_file import DType, OwnFile, Pass


@dataclass(frozen=True, kw_only=True)
class OwnWorkload:
    """A function of its inputs, in a file. Subclasses have the fields of the file."""

    path: str  # of the file
    dtype: DType | None  # type of floating inputs; None: as ``inputs`` makes them
    tf32: bool  # may float32 products run on tensor cores?
    pass_: Pass  # forward, gradients of every input alone, or both
    layout: Layout  # how floating inputs and upstream gradients lie in memory

    @cached_property
    def file(self) -> OwnFile:
        """What the file declares."""
        return own_file.read(self.path, strict=False)

    def options(self) -> Mapping[str, object]:
        """Return the keyword arguments of ``reference``, which an implementation gets if it names them."""
        return {name: getattr(self, name) for name in self.file.of_reference}


def workload_class(choice: Choice, own: type[OwnWorkload] = OwnWorkload) -> type:
    """Return the class of a workload: that of models/<name>.py, or of ``own`` for the file at the field ``path``.

    Raises LookupError if there is no such model, BadInput if there is no such file.
    """
    if (path := choice.fields.get("path")) is None:
        return option_class("models", choice.name)
    return class_of(own_file.read(str(path), strict=False), own)


@lru_cache(maxsize=256)
def _class_of(path: str, own: type[OwnWorkload], fields: tuple[tuple[str, type, Any], ...]) -> type:
    return make_dataclass(
        "OwnWorkload",
        [(name, kind, field(default=default)) for name, kind, default in fields],
        bases=(own,),
        frozen=True,
        kw_only=True,
    )


def class_of(file: OwnFile, own: type[OwnWorkload]) -> type:
    """Return the subclass of ``own`` for the workload in ``file``, whose fields are those of the file."""
    kinds = tuple((name, _rule(name, value, file), value) for name, value in file.fields.items())
    return _class_of(file.path, own, kinds)  # type: ignore[arg-type]  # mypy takes a class for unhashable


def _rule(name: str, value: Any, file: OwnFile) -> Any:
    """Return the type of a field, by its default and its annotation."""
    if name == "ranks":
        return Size
    if words := file.words.get(name):
        return Literal[words]
    if isinstance(value, tuple | list):
        return tuple[type(value[0]) if value else int, ...]  # type: ignore[misc]
    return type(value)


def bound_to(workload: Mapping[str, Any], impl: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the implementation ``impl`` of a config as its workload means it, if that is a file.

    A name without a path is a function of that file. A wrapper wraps ``reference`` unless it names another function.
    """
    path = workload.get("path")
    if path is None:
        return impl
    functions = own_file.read(str(path), strict=False).implementations
    if impl.get("name") in functions or (impl.get("path", "") is None and impl.get("name") != "file"):
        return {"args": {}, "rev": None, **impl, "path": f"{path}:{impl['name']}"}
    if "of" in impl and ":" not in str(impl["of"]):
        return {**impl, "of": f"{path}:{impl['of'] if impl['of'] in functions else 'reference'}"}
    return impl
