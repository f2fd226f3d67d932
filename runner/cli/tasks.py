"""List task files: their sizes, the memory that they need, and what cannot run here and why.

The files are run, but tensors get no memory. The column "check" is the memory, in float64, in which the tolerance is
found, beside inputs, weights and outputs.

Examples:
  python -m runner tasks level1
  python -m runner tasks 'KernelBench/level*/*.py'

"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

from ..device import gpus, processes
from ..device.import_path import arrange_here
from ..records.bad_input import BadInput
from ..records.case import Choice
from ..records.figures import as_words, counted, figure
from ..records.plain_text import shortened
from ..report.console import console
from ..report.table import Table, text_of
from ..tasks import formats, own_file
from ._parser import Parser

COLUMNS = ("task", "format", "inputs", "outputs", "check", "sizes")
LEFT, DROP = frozenset((0, 1, 5)), {5: 1, 1: 2}  # a narrow terminal leaves out the sizes, then the formats
LONGEST = 60  # characters of the sizes


def main(argv: Sequence[str]) -> int:
    """Print the list and return 0. Raises BadInput."""
    from rich.progress import track

    places = [formats.as_place(place) for place in Parser("tasks", __doc__, ("tasks",)).parse(argv).runs]
    if not places:
        raise BadInput("tasks: name a folder, as in python -m runner tasks level1")
    if missing := [place for place in places if not (formats.is_place(place) or os.path.isfile(place))]:
        raise BadInput(f"tasks {missing[0]}: there is no such folder or file; name one with tasks, as in level1")
    paths = [path for place in places for path in (formats.find(place) if formats.is_place(place) else [place])]
    gpu = max((gpu.memory_bytes for gpu in gpus.visible()), default=0)
    memory = gpu or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    out, found = console(), _rows(paths, "cuda" if gpu else "cpu", memory)
    rows = [*track(found, "tasks", len(paths), console=out, transient=True, disable=not out.is_terminal)]
    notes = [f"{task} cannot run here: {reason}" for task, *_, reason in rows if reason]
    table = Table("", COLUMNS, [("", [row[:-1] for row in rows])], notes, LEFT, drop=DROP, rule=False)
    print(text_of(table, out.width), end="")
    print(f"{counted(len(rows), 'task')}: {len(rows) - len(notes)} can run here, {len(notes)} cannot")
    return 0


def _rows(paths: Sequence[str], device: str, memory: int) -> Iterator[list[str]]:
    """Yield the lines and the reason why a task cannot run, "" if it can.

    Another process makes them: torch 2.13 may corrupt memory while tensors have none of their own.
    """
    waiting = [*paths]
    while waiting:
        command = [sys.executable, "-P", "-m", "kernel_runner.cli.tasks", device, str(memory), *waiting]
        pipe, silent, rows = subprocess.PIPE, subprocess.DEVNULL, 0
        with subprocess.Popen(command, stdout=pipe, stderr=silent, env=processes.environment()) as process:
            for line in process.stdout or ():
                yield json.loads(line)
                rows += 1
        if not rows:  # else an earlier task may have been the cause
            reason = f"the process that computed its sizes {processes.ending(process.returncode)}"
            yield [waiting[0], "", "", "", "", "", reason]
        waiting = waiting[max(1, rows) :]


def _answer(device: str, memory: str, *paths: str) -> None:
    """Print the line of each task as JSON, whatever the tasks print."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        arrange_here()
        for path in paths:
            print(json.dumps(_row(path, device, int(memory))), file=answers, flush=True)


def _row(path: str, device: str, memory: int) -> list[str]:
    """Return the line of a task on a device that has ``memory`` bytes."""
    from ..subject.faults import classify
    from ..subject.operation import workload_of

    file = own_file.read(path, strict=False)
    reason = file.refused
    if device == "cpu" and not reason and (number := formats.gpu_line(path)):
        reason = f"asks for a GPU in line {number}"
    line = [path, file.format, "", "", "", shortened(" ".join(as_words(file.fields)), LONGEST), reason]
    if reason:
        return line
    usual = {"path": path, "dtype": file.dtype, "tf32": False, "pass": "fwd", "layout": "contiguous"}
    try:
        amounts = workload_of(Choice(path, {**usual, **file.fields})).needed(device)
    except (Exception, SystemExit) as error:
        fault = classify(error, "inputs")
        return [*line[:-1], fault.reason if fault.status == "unsupported" else ""]
    reason = f"needs {figure(sum(amounts), 'byte')} of {figure(memory, 'byte')}; give smaller sizes"
    return [*line[:2], *(figure(amount, "byte") for amount in amounts), line[5], reason * (sum(amounts) > memory)]


if __name__ == "__main__":
    _answer(*sys.argv[1:])
