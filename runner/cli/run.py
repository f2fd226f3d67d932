"""Compose, run the grid, show it, log it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from runner import config
from runner.execute import CannotStart, Launcher, Notice, Ready, Started
from runner.execute.worker_process import Zygote
from runner.experiment import schema
from runner.experiment.case import Choice, Plan
from runner.experiment.results import Comparison, Row
from runner.experiment.schema import BadInput
from runner.report import Reporter
from runner.store.session import Session

if TYPE_CHECKING:
    from rich.console import Console

    from runner.report.derive import Names
    from runner.report.terminal import LiveReport

T = TypeVar("T")
LOGGED = ".logged"  # in the run's folder: the names of the reporters that have got all its rows, one a line


def main(argv: Sequence[str]) -> int:
    """The exit code. Raises BadInput before any case is started."""
    with ExitStack() as stack:
        early = Zygote() if _is_local(argv) else None  # torch is imported while the command line is read
        if early:
            stack.callback(early.close)
        plan = config.plan(argv)
        return 0 if plan is None else _run(plan, argv, early)  # None: --help, --cfg: Hydra has answered


def _is_local(words: Sequence[str]) -> bool:
    """Whether ``words`` look as if cases will run on this machine: not so ``--help``, or ``launcher=ray``."""
    remote = ("launcher=ray", "launcher=slurm", "--")
    return sys.platform == "linux" and not any(word.startswith(remote) and word != "--multirun" for word in words)


def _run(plan: Plan, argv: Sequence[str], early: Zygote | None) -> int:
    launcher, reporters = ends(plan)
    # The driver is asked in a process of its own, and meanwhile the journal is read.
    names = ThreadPoolExecutor(1).submit(devices, plan).result if plan.resume.of else lambda: None
    with Session(plan, argv, names) as session:
        if plan.resume.whole:
            config.validate(session.cases)
        _say(session.says())
        ended = execute(session, launcher, early)
        if isinstance(ended, OSError):
            _say(session.give_up(ended), error=True)
        elif isinstance(ended, CannotStart):
            _say([str(ended)], error=True)
        rows = conclude(session, reporters)
    if isinstance(ended, int):
        return 128 + ended
    return 1 if ended else exit_code(rows)


def execute(session: Session, launcher: Launcher, early: Zygote | None = None) -> int | OSError | CannotStart | None:
    """Run what is to be run, each row in the journal before the next; what ended it early, a signal or an error."""
    if not session.cases:
        return None
    _import_tables()
    from runner.report.terminal import LiveReport

    session.read_sources()
    interrupts = Interrupts()
    events: Any = launcher.run(session.cases, str(session.folder / "worker.log"), early)  # closed, it ends its workers
    with LiveReport(session.plan, console(), len(session.cases)) as report, interrupts.raised(), closing(events):
        try:
            for event in interrupts.told(events):
                with interrupts.held():  # what has been measured is written down
                    _hear(event, session, report)
            session.settle()
        except KeyboardInterrupt as interrupt:
            return interrupt.args[0] if interrupt.args else signal.SIGINT
        except BrokenPipeError:  # who read what is printed here has seen enough
            raise
        except (OSError, CannotStart) as error:
            return error
    return None


def _hear(event: object, session: Session, report: LiveReport) -> None:
    """Raises OSError if the folder cannot be written."""
    match event:
        case Notice():
            _shown(report.notice, event.text)
        case Ready():
            session.ready(event.environment, event.gpu.uuid if event.gpu else "")
        case Started():
            session.started(event.case)
            _shown(report.started, event.case)
        case Row():
            _shown(report.done, session.done(event))
        case Comparison():
            session.compared(event)
            _shown(report.compared, event)


def _shown(show: Callable[[T], None], what: T) -> None:
    """What cannot be printed, on a full disk or a terminal that has gone, ends no run: it is in the journal."""
    try:
        show(what)
    except BrokenPipeError:
        raise
    except OSError:
        pass


@dataclass
class Interrupts:
    """SIGINT and SIGTERM as KeyboardInterrupt, whose argument is the signal: politely, so that the table is written."""

    _held: bool = False
    _came: list[int] = field(default_factory=list)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """From here on; Ctrl-C ends Python as ever afterwards."""
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, self._hear)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Not before the end of this, and then where ``told`` goes on."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def told(self, events: Generator[Any, None, None]) -> Iterator[Any]:
        """``events``, to whose source goes an interrupt that was ``held``: it may have more to say before it ends."""
        with suppress(StopIteration):
            event = next(events)
            while True:
                yield event
                came, self._came = self._came, []
                event = events.throw(KeyboardInterrupt(came[0])) if came else next(events)

    def _hear(self, signum: int, frame: object) -> None:
        if not self._held:
            raise KeyboardInterrupt(signum)
        self._came.append(signum)


def conclude(session: Session, reporters: Mapping[str, Reporter]) -> list[Row]:
    """Print the table, write ``rows.csv`` and ask the reporters, all after the last timing. Return the grid's rows."""
    _import_tables()
    from runner.report import frame, terminal
    from runner.report.derive import Names, lines

    plan, (rows, rounds) = session.plan, session.grid()
    out, names, derived = console(), Names(plan.cases), lines(rows, plan.baseline, rounds)
    table, logged = session.folder / "rows.csv", session.folder / LOGGED
    before = logged.read_text(encoding="utf-8").split() if logged.exists() and not session.rows else []
    waiting = {name: reporter for name, reporter in reporters.items() if rows and name not in before}
    unwritten = ""
    try:
        frame.frame(lines(session.everything(), plan.baseline, rounds)).to_csv(table, index=False)
    except OSError as error:
        unwritten = f"{table} cannot be written: {error.strerror or error}"
    says = [*terminal.told(session.folder, rows, names), *terminal.notes([line.row for line in derived], names)]
    says += [unwritten] if unwritten else []
    if session.unreadable:
        says.append(f"{session.unreadable} rows are of another version of the runner, and left out")
    says.append(f"{_tally(rows, plan)}. Results: {session.folder}")
    publish = partial(_published, {} if unwritten else waiting, before, session.folder)
    try:
        if derived:
            drawn = terminal.table(derived, names, out.width, plan.columns, _title(plan, rows, names))
            out.print(drawn, soft_wrap=True)
        for line in says:
            out.print(line, markup=False, highlight=False, soft_wrap=True)
    except OSError as error:  # `head` has seen enough, or what prints is redirected to a full disk
        publish()  # reporters are asked once
        if isinstance(error, BrokenPipeError):
            raise
        with suppress(OSError):
            print(f"the table cannot be printed: {error.strerror or error}. {says[-1]}", file=sys.stderr, flush=True)
        return rows
    for line in publish():
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    return rows


def _import_tables() -> None:
    """Pandas takes half a second: before the first case, while another process imports torch, that costs nothing."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start a thread a core, which spin: 5 s of 64
    import pandas  # noqa: F401


def _published(reporters: Mapping[str, Reporter], before: Sequence[str], folder: Path) -> list[str]:
    """Ask each of ``reporters`` and return what they say.

    The folder keeps their names beside those of ``before``: a kill may come between the table and this.
    """
    messages: list[str] = []
    done = [*before]
    for name, reporter in reporters.items():
        messages += reporter.publish(folder)
        done.append(name)
        with suppress(OSError):
            (folder / LOGGED).write_text("\n".join(done), encoding="utf-8")
    return messages


def exit_code(rows: Sequence[Row]) -> int:
    """1 if a case failed, or if not one of them could be run and checked."""
    useful = any(row.status == "ok" or row.metrics.get("correct") is True for row in rows)
    return 0 if useful and not any(row.failed for row in rows) else 1


def ends(plan: Plan) -> tuple[Launcher, dict[str, Reporter]]:
    """Return the launcher of ``plan`` and its reporters by name. Raises BadInput."""
    launcher = _option("runner.execute", "launcher", plan.launcher, "run")
    return launcher, {one.name: _option("runner.report", "log", one, "publish") for one in plan.log}


def _option(room: str, group: str, choice: Choice, must: str) -> Any:
    try:
        cls = schema.find(room, choice.name, must)
    except LookupError as error:
        raise BadInput(f"{group}={choice.name}: {error}") from None
    return schema.build(cls, choice.fields, group if group == "launcher" else f"{group}.{choice.name}")


def devices(plan: Plan) -> set[str] | None:
    """The names of the GPUs that ``plan`` will use, "cpu" if there is none; None if they cannot be told."""
    if plan.launcher.name != "local" or all(case.device == "cpu" for case in plan.cases):
        return None
    from runner.device import gpus

    found = gpus.visible()
    if not found and str(plan.launcher.fields["gpus"]) in gpus.ANYWHERE:
        return {"cpu"}
    used = gpus.choose(str(plan.launcher.fields["gpus"]), found)
    return None if any(gpu.parent_uuid for gpu in used) else {gpu.name for gpu in used}  # torch names the whole of it


def _say(lines: Sequence[str], *, error: bool = False) -> None:
    for line in lines:
        print(f"runner: {line}" if error else line, file=sys.stderr if error else sys.stdout, flush=True)


def console() -> Console:
    """The terminal as it is; a pipe or a file has room for the whole table."""
    from rich.console import Console

    class Ours(Console):
        def on_broken_pipe(self) -> None:
            """Rich would end the process, with the exit code of a case that failed."""
            raise BrokenPipeError

    out = Ours()
    return out if out.is_terminal else Ours(width=400)


def _title(plan: Plan, rows: Sequence[Row], names: Names) -> str:
    devices = ", ".join(dict.fromkeys(row.device for row in rows if row.device))
    constants = {
        name: " ".join(f"{field}={value}" for field, value in names.constants(name).items())
        for name in dict.fromkeys(case.workload.name for case in plan.cases)
    }
    return "\n".join(
        [f"{plan.name} on {devices}" if devices else plan.name, *(f"{n}: {c}" for n, c in constants.items())]
    )


def _tally(rows: Sequence[Row], plan: Plan) -> str:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.status] = counts.get(row.status, 0) + 1
    text = ", ".join(f"{count} {status}" for status, count in counts.items()) or "no case done"
    missing = len(plan.cases) - len(rows)
    return f"{len(plan.cases)} case{'s' * (len(plan.cases) != 1)}: {text}" + (f", {missing} not run" if missing else "")
