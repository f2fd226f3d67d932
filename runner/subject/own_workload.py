"""A workload in a user's file, as a plan sees it: its fields. ``operation`` runs it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

from ..models.layout import Layout
from ..models.workload import Size
from ..records.case import Choice
from ..records.options import option_class
from ..records.schema import build
from ..tasks import own_file
from ..tasks.own_file import DType, OwnFile, Pass


@dataclass(frozen=True, kw_only=True)
class OwnFields:
    """The fields of a workload in a file. A subclass has those of its file too, whose names may be any."""

    path: str  # of the file
    dtype: DType | None  # type of floating inputs; None: as ``inputs`` makes them
    tf32: bool  # may float32 products run on tensor cores?
    pass_: Pass  # forward, gradients of every input alone, or both
    layout: Layout  # how floating inputs and upstream gradients lie in memory


@dataclass(frozen=True)
class OwnWorkload:
    """A function of its inputs, in a file."""

    fields: OwnFields

    @cached_property
    def file(self) -> OwnFile:
        """What the file declares."""
        return own_file.read(self.fields.path, strict=False)

    @property
    def tf32(self) -> bool:
        """Whether float32 products may run on tensor cores."""
        return self.fields.tf32

    def options(self) -> Mapping[str, object]:
        """Return the keyword arguments of ``reference``, which an implementation gets if it names them."""
        return {name: getattr(self.fields, name) for name in self.file.of_reference}


def workload_of(choice: Choice, own: type[OwnWorkload] = OwnWorkload) -> Any:
    """Return the workload of ``choice``, an ``own`` for one in a file. Raises LookupError, BadInput."""
    made: Any = build(workload_class(choice), choice.fields, choice.name)
    return own(made) if isinstance(made, OwnFields) else made


def workload_class(choice: Choice) -> type:
    """Return the class of the fields of a workload: that of models/<name>.py, or of the file at the field ``path``.

    Raises LookupError if there is no such model, BadInput if there is no such file.
    """
    if (path := choice.fields.get("path")) is None:
        return option_class("models", choice.name)
    return class_of(own_file.read(str(path), strict=False))


def class_of(file: OwnFile) -> type[OwnFields]:
    """Return the class of the fields of the workload in ``file``."""
    return _class_of(file.path, tuple((name, _rule(name, value, file), value) for name, value in file.fields.items()))


@lru_cache(maxsize=256)
def _class_of(path: str, fields: tuple[tuple[str, Any, Any], ...]) -> type[OwnFields]:
    own = [(name, kind, field(default=default)) for name, kind, default in fields]
    return make_dataclass("OwnFields", own, bases=(OwnFields,), frozen=True, kw_only=True)


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
