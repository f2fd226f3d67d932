"""Shared parts of the benchmarks: running the command, Markdown tables, and pages of results."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from runner.records.row import Row
from runner.store import journal, run_folder

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
POLL_S = 0.002  # largest delay in noticing the start of a worker
LIMIT_S = 1800.0  # time limit of a command
PHASES = {  # columns of a row, and their titles
    "inputs_s": "inputs",
    "first_call_s": "first call",
    "check_s": "checks",
    "measure_s": "measurements",
}


@dataclass(frozen=True)
class Run:
    """One run of ``python -m runner``, observed from outside."""

    wall_s: float  # from the start of the command to its end
    startup_s: float  # the part from the start of the worker process until it was ready
    folder: Path
    rows: tuple[Row, ...]

    @property
    def facts(self) -> dict[str, Any]:
        """Machine, versions, commit."""
        return environment(self.folder)


def environment(folder: Path) -> dict[str, Any]:
    """Return ``environment.json`` of a run's folder."""
    facts: dict[str, Any] = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    return facts


def run(words: Sequence[str], output_dir: Path, *, codes: Sequence[int] = (0,)) -> Run:
    """Run ``python -m runner <words>`` into ``output_dir``, with a pipe as stdout.

    Raises RuntimeError if its exit code is none of ``codes``.
    """
    command = [sys.executable, "-m", "runner", *words, f"output_dir={output_dir}"]
    started, worker = time.perf_counter(), None
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while worker is None and process.poll() is None:
            worker = time.time() if any(output_dir.glob("*/*/worker.log")) else None
            time.sleep(POLL_S)
        output, _ = process.communicate(timeout=LIMIT_S)
        wall_s = time.perf_counter() - started
    folder = next(iter(output_dir.glob("*/*/")), None)
    if process.returncode not in codes or worker is None or folder is None:
        raise RuntimeError(f"{' '.join(command)} ended with code {process.returncode}:\n{output}")
    ready = (folder / "environment.json").stat().st_mtime  # written for the last time when the worker is ready
    return Run(wall_s, ready - worker, folder, tuple(journal.read_rows(folder)))


def timed(command: Sequence[str], cwd: Path = ROOT) -> tuple[float, str]:
    """Return the wall time of ``command`` in s, and its output. Raises CalledProcessError, TimeoutExpired."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    return time.perf_counter() - started, done.stdout


def table(titles: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; floats get three significant digits."""
    drawn = [titles, ["---"] + ["---:"] * (len(titles) - 1), *lines]
    return "\n".join("| " + " | ".join(_cell(value) for value in line) + " |" for line in drawn)


def phase_table(kinds: Mapping[str, Sequence[Row]]) -> str:
    """Return a table of the mean seconds of each phase of a case, over the rows of each kind."""
    lines: list[tuple[object, ...]] = []
    for kind, rows in kinds.items():
        wall_s, *parts_s = (fmean(float(row.metrics.get(name) or 0.0) for row in rows) for name in ("wall_s", *PHASES))
        lines.append((kind, len(rows), wall_s, *parts_s, wall_s - sum(parts_s)))
    return table(["", "cases", "s a case", *PHASES.values(), "the rest"], lines)


def page(title: str, body: str, facts: dict[str, Any], load: float | None) -> str:
    """Return ``body`` under a title, the date and machine of a run with ``facts``, its versions and the command line.

    ``load``: the load average before; None if the run was an earlier one.
    """
    worker = facts["worker"]
    where = worker["gpu"]["name"] if worker["gpu"] else f"{worker['cpu']}, {worker['cpu_cores']} cores"
    versions = {"python": facts["python"], **facts["packages"], "torch": worker["torch"]}
    threads = [f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}"] if "OMP_NUM_THREADS" in os.environ else []
    command = " ".join([*threads, "python -m", _script(), *sys.argv[1:]])
    changed = " and changes not committed" if facts["dirty"] else ""
    started = datetime.fromisoformat(facts["started"]).strftime("%Y-%m-%d %H:%M %Z")
    loaded = "" if load is None else f"; load average before: {load:.2f}"
    return "\n".join(
        [
            f"# {title}\n",
            f"- {started}, {where}, {facts['system']}{loaded}",
            f"- {', '.join(f'{name} {version}' for name, version in versions.items() if version)}",
            f"- commit {facts['commit'] or 'unknown'}{changed}",
            f"- `{command}`\n",
            body,
        ]
    )


def _script() -> str:
    """Return the module that was started, as typed after ``python -m``."""
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec else sys.argv[0]


def publish(name: str, text: str, facts: dict[str, Any], write: bool) -> None:
    """Print ``text``; with ``write`` also ``keep`` it."""
    print(text)
    if write:
        keep(name, text, facts)


def keep(name: str, text: str, facts: dict[str, Any]) -> None:
    """Keep ``text`` as ``results/<name>-<cpu, or the GPU's name>.md``."""
    RESULTS.mkdir(exist_ok=True)
    device = facts["worker"]["gpu"]["name"] if facts["worker"]["gpu"] else "cpu"
    path = RESULTS / f"{name}-{device.lower().replace(' ', '-')}.md"
    path.write_text(text + "\n", encoding="utf-8")
    print(f"\nwritten: {path.relative_to(ROOT)}", file=sys.stderr)


def word(kept: bool) -> str:
    """Return PASS or MISS."""
    return "PASS" if kept else "MISS"


def load_average() -> float:
    """Return the load average of the last minute; near 0 on a quiet machine."""
    return os.getloadavg()[0]


def digits(value: float) -> str:
    """Return three significant digits; all digits before the point are kept."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def _cell(value: object) -> str:
    return digits(value) if isinstance(value, float) else str(value)


def fields_of(group: str, name: str) -> dict[str, Any]:
    """Return the fields of an option's YAML file, without its name; {} if there is no file.

    A field whose default is another field gets 1.
    """
    import yaml

    from runner.config.grid import BESIDE

    path = ROOT / "conf" / group / f"{name}.yaml"
    fields = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {key: 1 if "${" in str(value) else value for key, value in fields.items() if key not in ("name", *BESIDE)}


def share_of(count: int, processes: int, index: int) -> int:
    """Return how many of ``count`` are for process ``index``."""
    return count * (index + 1) // processes - count * index // processes


def add_process_options(parser: argparse.ArgumentParser, processes: int) -> None:
    """Add the options of a study in several processes: see ``over_processes``."""
    import torch

    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, default=processes, help="one at a time")
    parser.add_argument("--load", type=int, default=0, help="endless loops beside them")
    parser.add_argument("--write", action="store_true", help="keep the page in benchmarks/results/")
    parser.add_argument("--process", type=int, metavar="INDEX", help=argparse.SUPPRESS)  # be one of the processes


def over_processes(
    module: str, options: argparse.Namespace, counts: Sequence[str], limit_s: float
) -> Iterator[dict[str, Any]]:
    """Yield the lines of JSON that ``python -m module --process INDEX`` prints, for one new process after another.

    ``counts`` are options, of which each process gets its share. Raises CalledProcessError, and TimeoutExpired if a
    process takes longer than ``limit_s`` seconds.
    """
    with beside(options.load):
        for index in range(options.processes):
            command = [sys.executable, "-m", module, "--process", str(index), "--device", options.device]
            for name in counts:
                command += [f"--{name}", str(share_of(getattr(options, name), options.processes, index))]
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=limit_s)
            yield from map(json.loads, done.stdout.splitlines())
            print(f"process {index + 1} of {options.processes} is done", file=sys.stderr, flush=True)


def publish_study(name: str, title: str, body: str, options: argparse.Namespace, load: float) -> None:
    """Print the page of a study in several processes; with ``--write`` keep it. ``load``: before the first one."""
    from runner.device import identity

    worker = identity.describe() | ({"gpu": None} if options.device == "cpu" else {})  # on which machine the page is
    facts: dict[str, Any] = {**run_folder.environment(sys.argv[1:]), "worker": worker}
    publish(f"{name}_loaded" if options.load else name, page(title, body, facts, load), facts, options.write)


@contextmanager
def beside(count: int) -> Iterator[None]:
    """Run ``count`` endless loops meanwhile."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
