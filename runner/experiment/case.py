"""Case: one workload and one implementation, with everything a worker needs to repeat it; Plan: a grid of cases."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from runner.experiment.schema import BadInput, check, choices

Scalar = str | int | float | bool | None

WORKTREE = "worktree"  # the revision whose code is that of the files as they are
ARGS = "args."  # begins the fields of an implementation that are arguments of its function: ``args.BLOCK``
RECORDED = re.compile(r"(.+)@([0-9a-f]{40}|[0-9a-f]{64})", re.DOTALL)  # a field rev: its name as typed, and its commit


def _json(record: object) -> str:
    import orjson

    return orjson.dumps(record, option=orjson.OPT_SORT_KEYS).decode()


@dataclass(frozen=True)
class Choice:
    """One option of one config group, with its fields: ``gelu`` and ``{"rows": 8192, ...}``."""

    name: str
    fields: Mapping[str, Scalar]

    def to_record(self) -> dict[str, Scalar]:
        """Return ``{"name": ..., field: value, ...}``, as in the YAML."""
        return {"name": self.name, **self.fields}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Choice:
        """Return the choice that ``to_record`` made ``record`` of. Raises one of UNREADABLE if it is none."""
        fields: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in record.items()}
        if isinstance(given := fields.get("args"), Mapping):  # of an implementation's YAML
            del fields["args"]
            fields |= {f"{ARGS}{name}": value for name, value in given.items()}
        name = str(fields.pop("name"))
        hash(tuple(fields.values()))  # readers collect the values of a field in a set
        return cls(name, fields)

    @property
    def revision(self) -> str:
        """The name of the git revision of its code, as it was typed; "" for the working tree."""
        rev = str(self.fields.get("rev") or "")
        match = RECORDED.fullmatch(rev)
        return match[1] if match else rev

    @property
    def commit(self) -> str:
        """The commit of that revision; "" for the working tree."""
        match = RECORDED.fullmatch(str(self.fields.get("rev") or ""))
        return match[2] if match else ""

    @property
    def options(self) -> dict[str, Scalar]:
        """The fields without the revision."""
        return {name: value for name, value in self.fields.items() if name != "rev"}

    @property
    def arguments(self) -> dict[str, Scalar]:
        """The arguments of its function that are given: ``{"BLOCK": 64}``."""
        return {name.removeprefix(ARGS): value for name, value in self.fields.items() if name.startswith(ARGS)}

    @cached_property
    def text(self) -> str:
        """The record as JSON with sorted keys: equal choices have equal texts."""
        return _json(self.to_record())


@dataclass(frozen=True)
class CaseRecord:
    """A workload, an implementation of it, what to measure, on what device, and from which seed."""

    workload: Choice
    impl: Choice
    measures: tuple[Choice, ...]
    device: Literal["auto", "cpu", "cuda"]
    seed: int
    time_wrong: bool = False  # measure even if the result is wrong
    replica: int = 0  # the number of this repetition, which runs in a process of its own
    debug: Aid | None = None  # a debugging mode
    quick: bool = False  # measured in a tenth of the time
    deterministic_algorithms: bool = False  # under torch.use_deterministic_algorithms(True)

    @property
    def devices(self) -> int:
        """The number of GPUs that its worker sees: the workload's field ``devices``, 1 without one."""
        return int(self.workload.fields.get("devices") or 1)

    @cached_property
    def key(self) -> str:
        """16 hex digits that are the same wherever and whenever the same case is composed."""
        return hashlib.sha256(_json(self.to_record()).encode()).hexdigest()[:16]

    @cached_property
    def shared_key(self) -> str:
        """The key that it has as replica 0: the same for all replicas of a case."""
        return self.key if self.replica == 0 else replace(self, replica=0).key

    @cached_property
    def problem(self) -> str:
        """What cases must share to be compared: all but the implementation and the replica, as JSON."""
        return _json({name: value for name, value in self.to_record().items() if name not in ("impl", "replica")})

    @property
    def label(self) -> str:
        """``gelu/triton rows=8192 cols=4096 ...``, for people."""
        fields = " ".join(f"{name}={value}" for name, value in self.workload.fields.items() if value is not None)
        return f"{self.workload.name}/{self.impl_label} {fields}"

    @property
    def impl_label(self) -> str:
        """The implementation with its fields and revision, ``compiled(of=naive, mode=default)@main``."""
        options = {name.removeprefix(ARGS): value for name, value in self.impl.options.items() if value is not None}
        fields = ", ".join(f"{name}={value}" for name, value in options.items())
        revision = f"@{self.impl.revision}" if self.impl.revision else ""
        return f"{self.impl.name}({fields}){revision}" if fields else f"{self.impl.name}{revision}"

    @property
    def flat(self) -> dict[str, Scalar]:
        """Its fields by their names on the command line; a git revision as it was typed."""
        impl = {f"impl.{name}": value for name, value in self.impl.fields.items()}
        if "impl.rev" in impl:
            impl["impl.rev"] = self.impl.revision or WORKTREE
        workload = {f"workload.{name}": value for name, value in self.workload.fields.items()}
        return {**workload, **impl, **{name: value for name, value in self.settings.items() if name != "measure"}}

    @property
    def settings(self) -> dict[str, Scalar]:
        """Everything but the workload, the implementation and the replica, by the names of the command line."""
        own = ("device", "seed", "debug", "time_wrong", "quick", "deterministic_algorithms")
        given = {name: getattr(self, name) for name in own}
        fields = {f"measure.{one.name}.{name}": value for one in self.measures for name, value in one.fields.items()}
        whole = {**given, "measure": [one.name for one in self.measures], **fields}
        return {name: _scalar(value) for name, value in whole.items()}

    def to_record(self) -> dict[str, object]:
        """Return the case as JSON-ready values."""
        return {
            "workload": self.workload.to_record(),
            "impl": self.impl.to_record(),
            "measures": [measure.to_record() for measure in self.measures],
            "device": self.device,
            "seed": self.seed,
            "time_wrong": self.time_wrong,
            "replica": self.replica,
            "debug": self.debug,
            # Only where they are true: the keys of other cases are those from before these fields existed.
            **{name: True for name in ("quick", "deterministic_algorithms") if getattr(self, name)},
        }

    @classmethod
    def from_record(cls, record: Any) -> CaseRecord:
        """Return the case that ``to_record`` made ``record`` of. Raises one of UNREADABLE if it is none."""
        values = dict(record)
        values["workload"], values["impl"] = map(Choice.from_record, (values["workload"], values["impl"]))
        values["measures"] = tuple(map(Choice.from_record, values["measures"]))
        check(cls, values)
        return cls(**values)


def _scalar(value: Any) -> Scalar:
    """Return a list as it is typed."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, list | tuple) else value


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Which rows of an earlier run still count."""

    of: str | None = None  # the run's folder, or "last"; None: a new run
    whole: bool = False  # the cases are those of the folder
    retry: tuple[str, ...] = ()  # statuses that do not count
    trust: bool = False  # resume also in a folder that others can write to
    ignore: tuple[str, ...] = ()  # what may have changed since: PARTS of runner.store.fingerprint


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All cases of a run, validated, and what to do with their rows."""

    cases: tuple[CaseRecord, ...]  # the cases of one problem stand together
    name: str  # of the run's folder
    baseline: str | None  # label of the implementation that speed-ups are against; None: torch, else the first correct
    output_dir: str
    launcher: Choice
    log: tuple[Choice, ...]  # reporters beside the terminal and rows.csv
    columns: tuple[str, ...] = ()  # shown on the terminal; empty: the usual ones
    question: str | None = None  # that the run answers
    conclusion: tuple[Choice, ...] = ()  # analyses of runner.report.analyses that answer it
    resume: Resume = Resume()


class Labels:
    """Short labels of the implementations ``impls``, of which some may be equal."""

    def __init__(self, impls: Iterable[Choice]) -> None:
        self._impls = {impl.text: impl for impl in impls}
        self._varying = varying(self._impls.values())
        values = {(impl.name, *item) for impl in self._impls.values() for item in impl.fields.items()}
        self._ends = Counter((name, field, end) for name, field, value in values for end in _ends(value))
        self._revised = {impl.name for impl in self._impls.values() if impl.revision}

    def label(self, impl: Choice) -> str:
        """Return its name, and the fields in which the implementations of that name differ: ``compiled(of=naive)``.

        Arguments of its function that are given are always shown: ``triton(BLOCK=64)``. A function in a file is shown
        by the shortest end of its path that no other has, without the field's name if the option has no other field:
        ``file(f)``, ``file(b.py:f)``. A git revision follows, also the working tree if there is another:
        ``triton@main``, ``triton@worktree``.
        """
        shown = []
        for field, value in impl.options.items():
            if field in self._varying[impl.name] or field.startswith(ARGS):
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
        found = next((text for text in (*named, *bare) if rest.startswith(text)), "")
        if whole and not found and field.startswith(ARGS):
            return False
        rest = rest.removeprefix(found)
    return not rest


def _is_only(impl: Choice) -> bool:
    """Return whether ``impl`` has one field beside the arguments of its function."""
    return len(impl.options) - len(impl.arguments) == 1


def _ends(value: Scalar) -> list[str]:
    """Return what may stand for the function of a file, from ``f`` to ``a/b.py:f``; any other value as it is."""
    path, _, function = str(value).rpartition(":")
    if not path.endswith((".py", ".cu")):
        return [str(value)]
    parts = path.split("/")
    return [function, *(f"{'/'.join(parts[place:])}:{function}" for place in reversed(range(len(parts))))]


def varying(chosen: Iterable[Choice]) -> dict[str, set[str]]:
    """Return, for each option by its name, the fields that take several values."""
    options: dict[str, list[Mapping[str, Any]]] = {}
    for choice in chosen:
        options.setdefault(choice.name, []).append(choice.fields)
    return {option: several(fields) for option, fields in options.items()}


def several(records: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the fields that take several values in ``records``. A record may lack a field."""
    values: dict[str, set[Any]] = {}
    for record in records:
        for name, value in record.items():
            values.setdefault(name, set()).add(value)
    return {name for name, some in values.items() if len(some) > 1}


Aid = Literal[
    "launch_blocking",  # wait for each kernel, so that a fault is raised where it was launched
    "interpret",  # run Triton and Numba kernels as Python, on the CPU
    "sanitizer",  # run the case under compute-sanitizer too, before it is checked
    "anomaly",  # let autograd name the operation whose backward makes NaN
]
DEBUG_ENVIRONMENT: Mapping[str | None, Mapping[str, str]] = {  # of the workers of such cases, before they import torch
    "launch_blocking": {"CUDA_LAUNCH_BLOCKING": "1"},  # read when CUDA starts
    # read when a kernel is decorated, Triton's own among them, and when Numba is imported
    "interpret": {"TRITON_INTERPRET": "1", "NUMBA_ENABLE_CUDASIM": "1"},
}

# Of the workers of cases under deterministic_algorithms=true, before cuBLAS starts: else torch refuses its products
DETERMINISTIC_ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def interpreted() -> bool:
    """Return whether Triton kernels run as Python in this process, those of the runner's timer included."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def useless_debug(aid: str | None, device: str) -> str:
    """Return why ``aid`` finds nothing on ``device`` (auto | cpu | cuda), and what to type; "" if it can."""
    if aid == "interpret" and device != "cpu":
        return "interpret runs Triton and Numba kernels on the CPU; add device=cpu"
    if aid in ("launch_blocking", "sanitizer") and device == "cpu":
        return f"{aid} looks at kernels on a GPU; leave out device=cpu, on a machine that has one"
    return ""
