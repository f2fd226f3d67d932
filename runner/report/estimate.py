"""How long a grid will take, by what like cases took in earlier runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from runner.experiment.case import Case
from runner.store import journal

ROWS = 20_000  # of the newest runs; older ones are not read
UNKNOWN_S = 1.0  # of a case whose like was never run

Kind = tuple[str, ...]  # of cases that may be alike


@dataclass(frozen=True)
class Estimate:
    """Of some cases: seconds of each, by its key, in a worker. Starting workers and comparisons come on top."""

    seconds: dict[str, float]
    rows: int  # that it is based on
    runs: int
    same: int  # cases that are among them
    alike: int  # cases whose workload and implementation is, but not they themselves
    unlike: int  # cases whose implementation is not

    @property
    def total_s(self) -> float:
        """Of all, one after the other."""
        return sum(self.seconds.values())

    def __str__(self) -> str:
        if not self.seconds:
            return "nothing to run"
        count, loosely = len(self.seconds), len(self.seconds) - self.same - self.alike - self.unlike
        parts = [
            (self.same, "by the same case"),
            (self.alike, "by their workload and implementation"),
            (loosely, "by their implementation, of other workloads"),
            (self.unlike, f"taken for {UNKNOWN_S:g} s each"),
        ]
        basis = ", ".join(how if some == count else f"{some} {how}" for some, how in parts if some)
        return f"about {duration(self.total_s)} ({basis}; {self.rows} rows of {self.runs} earlier runs known)"


def estimate(cases: Sequence[Case], output_dir: str, devices: Collection[str] | None = None) -> Estimate:
    """Medians of the seconds that rows of the same case took, on the same device if possible.

    Else of the same workload, sizes and all, and implementation; else of that workload in other sizes; else of the
    implementation, else ``UNKNOWN_S``. ``devices``: the GPUs that will be used, if they are known.
    """
    found: dict[Kind, list[float]] = {}
    rows = runs = 0
    for folder in sorted((path.parent for path in Path(output_dir).glob(f"*/*/{journal.NAME}")), reverse=True):
        if rows >= ROWS:
            break
        took = _took(folder)
        rows, runs = rows + len(took), runs + bool(took)
        for case, device, seconds in took:
            for kind in _kinds(case, [device]):
                found.setdefault(kind, []).append(seconds)
    medians = {kind: median(some) for kind, some in found.items()}
    guessed: dict[str, float] = {}
    same = alike = unlike = 0
    for case in cases:
        nearest: Kind = next((kind for kind in _kinds(case, devices or ()) if kind in medians), ())
        guessed[case.key] = medians[nearest] if nearest else UNKNOWN_S
        of = nearest[0] if nearest else ""
        same += of == case.problem
        alike += of not in ("", case.problem)
        unlike += not nearest
    return Estimate(guessed, rows, runs, same, alike, unlike)


def duration(seconds: float) -> str:
    """``3 min 20 s``: two units, the larger not 0."""
    whole = max(1, round(seconds))
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def _took(folder: Path) -> list[tuple[Case, str, float]]:
    """Case, device and seconds of each row; none of a journal that this version cannot read."""
    try:
        rows = journal.read(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [(row.case, row.device, float(seconds)) for row in rows if (seconds := row.metrics.get("wall_s"))]


def _kinds(case: Case, devices: Collection[str]) -> list[Kind]:
    """What a case may be like, the nearest first: of a problem, a workload or any, an implementation, a device or any."""
    on = ["cpu"] if case.device == "cpu" else sorted(devices)
    near = (case.problem, case.workload.text, case.workload.name)  # with all that is asked of it, with sizes, by name
    return [(of, case.impl_label, device) for level in (near, ("",)) for device in (*on, "") for of in level]
