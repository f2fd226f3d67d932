"""Test how often ``runner gate`` is wrong: decisions on a commit against itself, and on an injected slowdown.

    python -m benchmarks.runner.gate [--device cpu] [--decisions 200] [--slowed 100] [--load 0] [--write]

A decision is about five problems, as in ``runner gate --all``: each is one operation as two functions, before and after
a change that does nothing. For a slowdown one of the five calls repeats its operation 34 times after the change and 33
times before (3 %), 11 and 10 times (10 %), or 13 and 10 times (30 %). The ratios come from paired rounds as a run takes
them, the decision from the gate's own function. What is unclear or slower is measured again, up to twice, as the gate
does; here that is in the same process. ``--load 2`` runs two endless loops beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

import torch

from benchmarks.common import (
    add_process_options,
    fields_of,
    load_average,
    over_processes,
    publish_study,
    table,
    word,
)
from benchmarks.timer.repeated import ratio_of, repeated, tensors
from runner.findings import gate
from runner.findings.gate import FAIL, PASS, UNCLEAR, exit_code
from runner.findings.run_comparison import Pair
from runner.measure.benchmark import Benchmark
from runner.records.case import CaseRecord, Choice
from runner.records.row import Row
from runner.records.settings import Settings
from runner.timing.call import Call
from runner.timing.statistics import Ratio, pooled
from runner.timing.timer import Timer
from runner.worker import tidy

PROBLEMS = {  # by device: what the five calls compute
    "cpu": ("gelu 2^10", "gelu 2^14", "gelu 2^16", "softmax 64 x 32", "matmul 128"),
    "cuda": ("gelu 2^18", "gelu 2^22", "softmax 1024 x 1024", "softmax 4096 x 1024", "matmul 1024"),
}
SLOWED = {"cpu": "gelu 2^14", "cuda": "gelu 2^16"}  # the operation that is repeated
SMALLEST_LOG2, LARGEST_LOG2 = 12, 22  # bytes of an allocation before each decision, which moves the next ones
AGAIN, PROCESSES = 2, 2  # as ``--repeat`` and the processes of each repetition
DEFAULT = 0.03
LIMIT_S = 900.0  # time limit of a process


@dataclass(frozen=True)
class Slowdown:
    """An injected slowdown, the limit of the gate, and how many of 100 must be found."""

    share: float
    times: tuple[int, int]  # repetitions before and after
    limit: float
    least: float


SLOWDOWNS = {
    "cpu": (Slowdown(0.30, (10, 13), DEFAULT, 0.80),),
    "cuda": (Slowdown(0.03, (33, 34), 0.01, 0.95), Slowdown(0.10, (10, 11), DEFAULT, 1.0)),
}
MOST_ALARMS = {"cpu": 0.01, "cuda": 0.005}  # shares of the decisions on a commit against itself
MOST_UNCLEAR = {"cpu": None, "cuda": 0.05}


@dataclass(frozen=True)
class Decision:
    """One decision of the gate."""

    share: float  # of the slowdown; 0 for a commit against itself
    code: int  # exit code
    found: bool  # the call that was slowed is said to be slower
    measured: int  # pairs measured, repetitions included
    width: float  # median half-width of the five intervals, as a share
    seconds: float


# --- what follows from the decisions ---


def bars(decisions: Sequence[Decision], device: str) -> list[tuple[str, str, str]]:
    """Return for each bar its text, the result, and PASS or MISS."""
    same = [one for one in decisions if not one.share]
    alarms, unclear = ([one.code == code for one in same] for code in (FAIL, UNCLEAR))
    most, most_unclear = MOST_ALARMS[device], MOST_UNCLEAR[device]
    found = [
        (f"a commit against itself: alarms in {100 * most:g} % or less", _count(alarms), word(fmean(alarms) <= most))
    ]
    if most_unclear is not None:
        text = f"a commit against itself: unclear in {100 * most_unclear:g} % or less"
        found.append((text, _count(unclear), word(fmean(unclear) <= most_unclear)))
    for slow in SLOWDOWNS[device]:
        hits = [one.found and one.code == FAIL for one in decisions if one.share == slow.share]
        text = f"{100 * slow.share:g} % slower found in {100 * slow.least:g} % or more"
        text += f", --max-slowdown {100 * slow.limit:g}%"
        found.append((text, _count(hits), word(bool(hits) and fmean(hits) >= slow.least)))
    return found


def decisions_table(decisions: Sequence[Decision]) -> str:
    """Return a table with a line for each slowdown."""
    titles = ["slowdown", "decisions", "pass", "fail", "unclear", "found", "pairs measured", "width, %", "s a decision"]
    lines = []
    for share in dict.fromkeys(one.share for one in decisions):
        some = [one for one in decisions if one.share == share]
        counts = [sum(one.code == code for one in some) for code in (PASS, FAIL, UNCLEAR)]
        means = (fmean(one.measured for one in some), 100 * median(one.width for one in some))
        found = sum(one.found for one in some) if share else ""
        lines.append((f"{100 * share:g} %", len(some), *counts, found, *means, median(one.seconds for one in some)))
    return table(titles, lines)


def report(decisions: Sequence[Decision], device: str, processes: int, load: int, seconds: float) -> str:
    """Return the bars and the table."""
    where = f"beside {load} endless loops" if load else "without a load of its own"
    return "\n\n".join(
        [
            f"{processes} processes, {where}; {seconds:.0f} s in all. Each decision is about 5 problems.",
            "## Bars\n\n" + table(["bar", "seen", ""], bars(decisions, device)),
            "## Decisions\n\n" + decisions_table(decisions),
            "Found: the call that was slowed is called slower. Pairs measured: mean, with those measured again. Width: "
            "median half-width of the 95 % interval of a ratio.",
        ]
    )


def _count(some: Sequence[bool]) -> str:
    return f"{sum(some)} of {len(some)}"


# --- one process ---


@dataclass
class Problem:
    """A call before and after a change, and the ratios measured so far."""

    name: str
    before: Call
    after: Call
    ratios: list[Ratio]

    def measure(self, settings: Timer, device: str) -> None:
        """Take paired rounds once more, as a run does."""
        if ratio := ratio_of(self.after, self.before, settings, device):
            self.ratios.append(ratio)

    def pair(self) -> Pair:
        """Return what the gate judges."""
        case = CaseRecord(Choice(self.name, {}), Choice("call", {}), (), Settings("auto", 0))
        row = Row(case=case, status="ok", metrics={"correct": True, "wall_us": 1.0})
        ratio, count = pooled(self.ratios) if self.ratios else None, len(self.ratios)
        return Pair(self.name, "call", row, row, ratio=ratio, processes=(count, count))


def decide_all(index: int, device: str, settings: Timer, decisions: int, slowed: int) -> Iterator[Decision]:
    """Yield ``decisions`` on equal calls, and ``slowed`` on each slowdown, in random order."""
    chance, held = random.Random(index), []
    plan: list[Slowdown | None] = [None] * decisions + [slow for slow in SLOWDOWNS[device] for _ in range(slowed)]
    chance.shuffle(plan)
    settings.prepare(device)
    tidy()  # as a worker does before its first case
    for slow in plan:
        size = int(2 ** chance.uniform(SMALLEST_LOG2, LARGEST_LOG2))
        held.append(torch.empty(size, dtype=torch.uint8, device=device))
        yield decide(problems(device, slow, chance), slow, settings, device)


def problems(device: str, slow: Slowdown | None, chance: random.Random) -> list[Problem]:
    """Return five problems; with ``slow`` one of them, which comes first, is slower after the change."""
    chosen = [(name, (1, 1)) for name in PROBLEMS[device]]
    if slow:
        chosen[chance.randrange(len(chosen))] = chosen[0]
        chosen[0] = (SLOWED[device], slow.times)
    found = []
    for name, times in chosen:
        x = tensors(name, device)
        calls = [repeated(name, x, count) for count in times]
        for call in calls:
            call.run()
        found.append(Problem(name, calls[0], calls[1], []))
    return found


def decide(some: Sequence[Problem], slow: Slowdown | None, settings: Timer, device: str) -> Decision:
    """Return what the gate decides about ``some``, with its repetitions."""
    started, limit = time.perf_counter(), slow.limit if slow else DEFAULT
    for problem in some:
        problem.measure(settings, device)
    measured = len(some)
    for left in reversed(range(AGAIN + 1)):
        findings = gate.decide([problem.pair() for problem in some], limit)
        again = gate.again(findings) if left else []
        for problem in (some[place] for place in again for _ in range(PROCESSES)):
            problem.measure(settings, device)
            measured += 1
        if not again:
            break
    halves = [one.pair.ratio.half for one in findings if one.pair.ratio]
    found = slow is not None and findings[0].word == "slower"
    share = slow.share if slow else 0.0
    return Decision(share, exit_code(findings), found, measured, median(halves), time.perf_counter() - started)


# --- all processes, and the page ---


def main() -> None:
    """Run the processes and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_process_options(parser, processes=8)
    parser.add_argument("--decisions", type=int, default=200, help="of a commit against itself, in all processes")
    parser.add_argument("--slowed", type=int, default=100, help="decisions on each slowdown")
    options, load = parser.parse_args(), load_average()
    if options.process is not None:
        settings = Benchmark(**fields_of("measure", "benchmark"))
        for one in decide_all(options.process, options.device, settings, options.decisions, options.slowed):
            print(json.dumps(asdict(one)), flush=True)
        return
    if min(options.decisions, options.slowed) < options.processes:
        parser.error("--decisions and --slowed: at least one of each a process")
    started = time.perf_counter()
    records = over_processes("benchmarks.runner.gate", options, ("decisions", "slowed"), LIMIT_S)
    decisions = sorted((Decision(**record) for record in records), key=lambda one: one.share)
    body = report(decisions, options.device, options.processes, options.load, time.perf_counter() - started)
    publish_study("gate", "Decisions of the gate", body, options, load)


if __name__ == "__main__":
    main()
