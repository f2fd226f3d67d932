"""What differs between two runs beside the times: machine, versions, sources, settings."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from statistics import median
from typing import Any

from ..device import identity
from ..device.used_paths import FILES
from ..records.columns import DEVICE
from ..records.figures import as_typed, figure
from ..records.grouping import grouped
from ..records.row import Row
from ..records.settings import EXACTNESS
from ..records.untrusted import mapping
from ..store.fingerprint import MEASURE, is_version
from .matching import MatchedCase, match_sides, sides_of
from .run import Run

CLOCK_SHARE = 0.01  # medians of the clock that differ by less are alike
MOST_NAMED = 4  # files or values in one difference


def differences(a: Run, b: Run, names: tuple[str, str] = ("A", "B")) -> list[str]:
    """Return the differences between two runs other than times: ``torch: 2.12.0 in A, 2.13.0 in B``.

    These are the machine, versions, commits, sources, inputs and settings. Sources, clocks and settings are compared
    over the cases that both have.
    """
    both = match_sides(*sides_of((a, b), names)).both
    rows = [[row for pair in both for row in pair[place].rows] for place in (0, 1)]
    facts = [{**_machine(run), **_settings(shared or run.rows)} for run, shared in zip((a, b), rows, strict=True)]
    texts = [
        f"{name}: {mine or 'none known'} in {names[0]}, {theirs or 'none known'} in {names[1]}"
        for name, mine in facts[0].items()
        if (theirs := facts[1].get(name, mine)) != mine
    ]
    clocks = [[float(mhz) for row in shared if (mhz := row.metrics.get("sm_clock_mhz"))] for shared in rows]
    if all(clocks) and abs(math.log(median(clocks[1]) / median(clocks[0]))) > CLOCK_SHARE:
        mine, theirs = (figure(median(mhz), "MHz") for mhz in clocks)
        texts.append(f"clock of the multiprocessors (median): {mine} in {names[0]}, {theirs} in {names[1]}")
    return [*texts, *_sources(*rows), *_moved(both, names)]


def _machine(run: Run) -> dict[str, str]:
    """Return the known facts about the machine and the versions of a run, by the names that are printed."""
    sessions: Sequence[Mapping[str, Any]] = run.sessions
    every = [worker for each in sessions for worker in (each.get("worker"), *mapping(each.get("workers")).values())]
    workers, packages = list(map(mapping, every)), [mapping(each.get("packages")) for each in sessions]
    gpus = [mapping(worker.get("gpu")) for worker in workers]
    columns = [identity.device_columns(worker) for worker in workers if worker.get("gpu")]  # none on a CPU
    on_gpu = [row for row in run.rows if row.device not in ("", "cpu")]
    on_cpu = [row for row in run.rows if row.device == "cpu"]

    def known(name: str, facts: Iterable[Mapping[str, Any]]) -> str:
        return _some(each.get(name) for each in facts)

    return {
        "GPU": _some(sorted({row.device for row in on_gpu})),
        "card": _some(sorted({str(row.metrics.get("gpu_uuid", "")) for row in on_gpu})),
        "driver": known("driver", gpus),
        "CPU": known("cpu", workers),
        "CPU cores": known("cpu_cores", workers),
        "CPU threads": _some(row.metrics.get("threads") for row in on_cpu),
        "torch": known("torch", workers) or known("torch", packages),
        "CUDA of torch": known("torch_cuda", workers),
        "triton": known("triton", packages),
        "python": known("python", sessions),
        "commit": run.commits,
        "host": known("hostname", sessions),
        "system": known("system", sessions),
        **{name: known(name, columns) for name in DEVICE if any(name in gpu for gpu in columns)},
    }


def _some(values: Iterable[object]) -> str:
    """Return the different ones of ``values`` that are known, in order, at most ``MOST_NAMED`` of them."""
    known = list(dict.fromkeys(as_typed(value) for value in values if value not in (None, "")))
    more = f" and {len(known) - MOST_NAMED} more" if known[MOST_NAMED:] else ""
    return ", ".join(known[:MOST_NAMED]) + more


def _settings(rows: Sequence[Row]) -> dict[str, str]:
    """Return the seeds, the number of processes per case, and the settings that may differ between equal cases."""
    cases = {row.case.key: row.case for row in rows}.values()
    fields = grouped((item for case in cases for item in case.flat.items()), itemgetter(0)).items()
    return {
        "measure": _some(sorted({measure.name for case in cases for measure in case.measures})),
        "seed": _some(sorted({case.settings.seed for case in cases})),
        "processes per case": _some(sorted({*Counter(case.shared_key for case in cases).values()})),
        **{
            name: _some("null" if value is None else value for _, value in items)
            for name, items in fields
            if name.startswith("measure.") or name in EXACTNESS
        },
    }


def _sources(first: Sequence[Row], other: Sequence[Row]) -> list[str]:
    """Say which files of equal cases differ, by their digests."""
    digests = [{(file, text) for row in rows for file, text in row.fingerprint.items()} for rows in (first, other)]
    if not all(digests):
        return []
    ends = [{(file.rpartition("/")[2], text) for file, text in side} for side in digests]
    moved, different = ends[0] & ends[1], digests[0] ^ digests[1]
    changed = {file for file, text in different if (file.rpartition("/")[2], text) not in moved}
    files = sorted(file for file in changed - {MEASURE, FILES} if not is_version(file))
    sources = [f"sources that differ: {_some(files)}"] if files else []
    return sources + ["the code that measures differs (runner/measure, runner/timing)"] * (MEASURE in changed)


def _moved(both: Sequence[tuple[MatchedCase, MatchedCase]], names: Sequence[str]) -> list[str]:
    """Say which functions are in files of different folders."""
    paths = (tuple(matched.case.impl.fields.get("path") for matched in pair) for pair in both)
    moved = dict.fromkeys(pair for pair in paths if pair[0] != pair[1])
    return [f"file: {mine} in {names[0]}, {theirs} in {names[1]}" for mine, theirs in moved]
