"""Short labels of implementations, and the fields in which records differ."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .bad_input import BadInput, choices
from .case import ARGS, WORKTREE, Choice, Scalar
from .figures import as_typed
from .grouping import grouped


class Labels:
    """Short labels of the implementations ``impls``, of which some may be equal."""

    def __init__(self, impls: Iterable[Choice]) -> None:
        self._impls = {impl.text: impl for impl in impls}
        self._varying = varying(self._impls.values())
        values = {(impl.name, *item) for impl in self._impls.values() for item in impl.fields.items()}
        self._ends = Counter((name, field, end) for name, field, value in values for end in _ends(value))
        others = {item[:2] for item in values if str(item[2]).rpartition(":")[2] != "reference" or item[0] == "file"}
        # Of workloads in files: each case has the reference of its own.
        self._hidden = {item[:2] for item in values} - others
        self._revised = {impl.name for impl in self._impls.values() if impl.revision}

    def label(self, impl: Choice) -> str:
        """Return its name, and the fields in which the implementations of that name differ: ``compiled(of=naive)``.

        Arguments of its function that are given are always shown: ``triton(BLOCK=64)``. A function in a file is shown
        by the shortest end of its path that no other has, without the field's name if the option has no other field:
        ``file(f)``, ``file(b.py:f)``. A git revision follows, also the working tree if there is another:
        ``triton@main``, ``triton@worktree``. The reference of a workload in a file is shown without the file.
        """
        shown = []
        for field, value in impl.options.items():
            varies = field in self._varying[impl.name] and (impl.name, field) not in self._hidden
            if varies or field.startswith(ARGS):
                *ends, whole = _ends(value)
                short = next((end for end in ends if self._ends[impl.name, field, end] == 1), whole)
                shown.append(short if ends and _is_only(impl) else f"{field.removeprefix(ARGS)}={short}")
        revision = f"@{impl.revision or WORKTREE}" if impl.name in self._revised else ""
        return f"{impl.name}({', '.join(shown)}){revision}" if shown else f"{impl.name}{revision}"

    def check(self, label: str | None, field: str = "baseline") -> None:
        """Raise BadInput unless ``label``, the value of ``field``, is None or names one of them."""
        if label is not None and not called(list(self._impls.values()), label):
            known = choices(label, map(self.label, self._impls.values()))
            raise BadInput(f"{field}={label}: not in this sweep; {known}")


def called(impls: Sequence[Choice], label: str) -> list[int]:
    """Return the places of those in ``impls`` that ``label`` names, by the name alone or with some fields in order.

    The table of a part of a grid shows fewer fields and shorter paths than that of the whole grid; either label is
    accepted. A whole path comes first: ``a.py:f`` is also the end of ``old/a.py:f``. So does what is given exactly
    these arguments: ``triton`` is the one without any, if there is one.
    """
    whole = [place for place, impl in enumerate(impls) if _is_called(impl, label, whole=True)]
    return whole or [place for place, impl in enumerate(impls) if _is_called(impl, label, whole=False)]


def _is_called(impl: Choice, label: str, *, whole: bool) -> bool:
    label = label.removesuffix(f"@{impl.revision or WORKTREE}")
    name, _, fields = label.partition("(")
    if name != impl.name or not fields.endswith(")"):
        return label == impl.name and not (whole and impl.arguments)
    rest = f"{fields[:-1]}, "
    for field, value in impl.options.items():
        *ends, full = _ends(value)
        named = [f"{field.removeprefix(ARGS)}={text}, " for text in (full, *(() if whole else ends))]
        bare = [text.partition("=")[2] for text in named] if ends and _is_only(impl) else []
        begin = next((text for text in (*named, *bare) if rest.startswith(text)), "")
        if whole and not begin and field.startswith(ARGS):
            return False
        rest = rest.removeprefix(begin)
    return not rest


def _is_only(impl: Choice) -> bool:
    """Return whether ``impl`` has one field beside the arguments of its function."""
    return len(impl.options) - len(impl.arguments) == 1


def _ends(value: Scalar) -> list[str]:
    """Return the names of a function of a file, from ``f`` to ``a/b.py:f``; any other value as it is."""
    path, _, function = str(value).rpartition(":")
    if not path.endswith((".py", ".cu")):
        return [as_typed(value)]
    parts = path.split("/")
    return [function, *(f"{'/'.join(parts[place:])}:{function}" for place in reversed(range(len(parts))))]


def varying(chosen: Iterable[Choice]) -> dict[str, set[str]]:
    """Return, for each option by its name, the fields that take several values."""
    options = grouped(chosen, lambda choice: choice.name)
    return {option: several(choice.fields for choice in same) for option, same in options.items()}


def several(records: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the fields that take several values in ``records``. A record may lack a field."""
    values = {(name, value) for record in records for name, value in record.items()}
    return {name for name, count in Counter(name for name, _ in values).items() if count > 1}
