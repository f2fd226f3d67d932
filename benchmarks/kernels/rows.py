"""The results of races, from the rows and the paired rounds that a run of the runner has left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kernels.races import Race
from runner.findings.past import read_run
from runner.findings.ratios import by_key, ratio_in_rounds
from runner.records.paired_rounds import PairedRounds
from runner.records.row import Row
from runner.timing import statistics


@dataclass(frozen=True)
class Result:
    """The rows of a race by the implementation's name in the table, and why the others have no time."""

    race: Race
    rows: Mapping[str, Row]
    failed: Mapping[str, str]
    rounds: Mapping[str, PairedRounds]  # by the cases' keys

    def us(self, name: str) -> float:
        """Return the time that the race is about: of the GPU, or the latency of the caller."""
        figure: Any = self.rows[name].metrics["latency_us"] if self.race.latency else self.rows[name].time_us
        return float(figure)

    def ratio(self, ours: str, peer: str) -> tuple[float, float]:
        """Return the time of ``peer`` over that of ``ours``, and half of its relative 95 % interval.

        GPU times are compared in paired rounds. Latencies are separate times.
        """
        first, second = self.rows[peer], self.rows[ours]
        if self.race.latency:
            pcts: list[Any] = [row.metrics["latency_pct"] for row in (first, second)]
            found = statistics.unpaired((self.us(peer), pcts[0] / 100), (self.us(ours), pcts[1] / 100))
            return math.exp(found.log), found.half
        paired = ratio_in_rounds([first], [second], self.rounds)
        return (math.exp(paired.log), paired.half) if paired else (math.nan, math.nan)


def results(races: Iterable[Race], folders: Iterable[Path]) -> list[Result]:
    """Return the result of each of ``races`` by the runs in ``folders``."""
    runs = [read_run(folder) for folder in folders]
    rounds = {key: one for run in runs for key, one in by_key(run.rounds).items()}
    named = [(run.names.impl(row.case), row) for run in runs for row in run.rows]
    found = []
    for race in races:
        rows = {name: row for name, row in named if _is_of(row, race)}
        failed = {name: why for name, row in rows.items() if (why := _failure(row, race, rounds))}
        found.append(Result(race, {name: row for name, row in rows.items() if name not in failed}, failed, rounds))
    return found


def _is_of(row: Row, race: Race) -> bool:
    own = {"pass": "fwd", **row.case.workload.fields}
    fields = {"pass": "fwd", **race.fields}
    return row.case.workload.name == race.op and all(own.get(name) == value for name, value in fields.items())


def _failure(row: Row, race: Race, rounds: Mapping[str, PairedRounds]) -> str:
    """Return why ``row`` cannot be compared; "" if it can."""
    if row.status != "ok":
        return f"{row.status}: {row.reason}"
    if race.latency:
        return "" if row.metrics.get("latency_pct") is not None else "its latency was not measured"
    return "" if row.time_us is not None and row.case.key in rounds else "not in the paired rounds"
