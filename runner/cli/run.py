"""Compose, run the grid, report it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import runner.config as config
from runner.execute import CannotStart, Launcher, Notice, Ready, Started
from runner.execute.worker_process import Zygote
from runner.experiment import schema
from runner.experiment.case import Choice, Plan
from runner.experiment.results import Comparison, Row
from runner.experiment.schema import BadInput
from runner.report import Reporter
from runner.store.session import Session

if TYPE_CHECKING:
    from runner.report.live import LiveReport

MULTIRUN = ("-m", "--multirun")
FIRST_SIGNAL = 128  # exit codes from here on are those of an interrupt
ASKED = ".logged"  # in the run's folder: names of the reporters that have published all its rows, one per line


def main(argv: Sequence[str]) -> int:
    """Return the exit code. Raises BadInput before any case is started."""
    with early_zygote(argv) as early:
        plan = config.plan(argv)
        return 0 if plan is None else carry_out(plan, argv, early)[1]  # None: Hydra has answered, as for --cfg


def as_sweep(words: Sequence[str]) -> list[str]:
    """Return ``words`` with ``-m``, for a command that always sweeps."""
    return [*words, *([] if {*words} & {*MULTIRUN} else MULTIRUN[:1])]


@contextmanager
def early_zygote(argv: Sequence[str]) -> Iterator[Zygote | None]:
    """Yield a process that imports torch while the command line is read; None if cases will not run on this machine."""
    with ExitStack() as stack:
        early = Zygote() if _is_local(argv) else None
        if early:
            stack.callback(early.close)
        yield early


def _is_local(words: Sequence[str]) -> bool:
    """Return whether cases will probably run on this machine: not for ``--help`` or ``launcher=ray``."""
    remote = ("launcher=ray", "launcher=slurm", "--")
    return sys.platform == "linux" and not any(word.startswith(remote) and word != "--multirun" for word in words)


def carry_out(plan: Plan, argv: Sequence[str], early: Zygote | None = None) -> tuple[Session, int]:
    """Run the grid and report it. Return its session, whose journal is closed, and the exit code.

    ``argv`` is recorded as the command line. Raises BadInput before any case is started.
    """
    launcher, reporters = options(plan)
    # Asking the driver takes a process of its own. Meanwhile the journal is read.
    names = ThreadPoolExecutor(1).submit(device_names, plan).result if plan.resume.of else lambda: None
    with Session(plan, argv, names) as session, Interrupts() as interrupts:
        if plan.resume.whole:
            config.validate(session.cases)
        for line in session.summary():
            print(line, flush=True)
        ended = execute(session, launcher, interrupts, early)
        errors = session.give_up(ended) if isinstance(ended, OSError) else [str(ended)] if ended else []
        for error in errors:
            print(f"runner: {error}", file=sys.stderr, flush=True)
        rows = conclude(session, reporters)
    if interrupts.first:
        return session, 128 + interrupts.first
    return session, 1 if ended else exit_code(rows)


def execute(
    session: Session, launcher: Launcher, interrupts: Interrupts, early: Zygote | None = None
) -> OSError | CannotStart | None:
    """Run the cases of ``session`` until an interrupt. Return the error that ended the run early, if any."""
    if not session.cases:
        return None
    from runner.report.live import LiveReport
    from runner.report.terminal import console

    session.read_sources()
    events: Any = launcher.run(session.cases, str(session.folder / "worker.log"), early)  # closing it ends its workers
    with LiveReport(session.plan, console(), len(session.cases)) as live, closing(events):
        try:
            interrupts.deliver(events, partial(_on_event, session, live))
            session.settle()
        except KeyboardInterrupt:
            interrupts.first = interrupts.first or signal.SIGINT
            if interrupts.first == signal.SIGINT:  # SIGTERM may come since a case fills the machine
                session.stop()
        except BrokenPipeError:  # nobody reads stdout any more
            session.stop()
            raise
        except (OSError, CannotStart) as error:
            return error
    return None


def _on_event(session: Session, live: LiveReport, event: object) -> None:
    """Record ``event`` in the journal, then show it. Raises OSError if the folder cannot be written."""
    match event:
        case Notice():
            live.notice(event.text)
        case Ready():
            session.ready(event.environment, event.gpu.uuid if event.gpu else "")
        case Started():
            session.started(event.case)
            live.started(event.case)
        case Row():
            live.done(session.done(event))
        case Comparison():
            session.compared(event)
            live.compared(event)


class Interrupts:
    """Turns SIGINT and SIGTERM into KeyboardInterrupt with the signal's number. Use it as a context manager.

    The first one raises it where an event is awaited. Elsewhere it is only noted: an event is handled and a report is
    written to its end. A second one raises it at once, but never while an event is handled.
    """

    def __init__(self) -> None:
        self.first = 0  # number of the first signal
        self._state: Literal["awaiting", "handling", ""] = ""
        self._pending = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *failure: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def deliver(self, events: Generator[Any, None, None], handle: Callable[[Any], None]) -> None:
        """Call ``handle`` with each event. An interrupt meanwhile is thrown into ``events``, which may yield more."""
        if self.first:
            raise KeyboardInterrupt(self.first)
        resume: Callable[[], Any] = partial(next, events)
        try:
            with suppress(StopIteration):
                while True:
                    self._state = "awaiting"
                    event = resume()
                    self._state = "handling"
                    handle(event)
                    pending, self._pending = self._pending, 0
                    resume = partial(events.throw, KeyboardInterrupt(pending)) if pending else partial(next, events)
        finally:
            self._state = ""

    def _on_signal(self, number: int, frame: object) -> None:
        again, self.first = self.first, self.first or number
        if self._state == "awaiting" or (again and not self._state):
            raise KeyboardInterrupt(number)
        self._pending = number


def conclude(session: Session, chosen: Mapping[str, Reporter]) -> list[Row]:
    """Ask the terminal, both tables and the ``chosen`` reporters for their reports, and print what they return.

    A chosen reporter is not asked about a run without rows, nor twice about the same rows. Return the grid's rows.

    Raises:
        BrokenPipeError: nobody reads stdout any more. All reporters have been asked.

    """
    from runner.experiment.columns import DEVICE
    from runner.report import past
    from runner.report.derive import Run
    from runner.report.formats import TABLE, Csv, Markdown
    from runner.report.terminal import Terminal, console
    from runner.store import run_folder

    (rows, rounds), out, folder, plan = session.grid(), console(), session.folder, session.plan
    file = folder / ASKED
    asked: list[str] = []
    with suppress(OSError, ValueError):
        asked += [] if session.rows else file.read_text(encoding="utf-8").split()
    sessions = run_folder.earlier_sessions(folder) if {*plan.columns} & {*DEVICE} else []  # they know the device
    run = Run(
        *(folder, rows, rounds, plan.baseline, plan.columns, sessions, 0, plan.name, plan.cases),
        question=plan.question,
        conclusion=plan.conclusion,
    )
    every = session.everything()  # also rows that are in no table of this session
    whole = run if len(every) == len(rows) else replace(run, rows=every, cases=past.every_case(plan.cases, every))
    reporters: dict[str, Reporter] = {
        "terminal": Terminal(run, out.width),
        "csv": Csv(whole.lines),
        **({"markdown": Markdown(whole)} if session.rows or not (folder / TABLE).exists() else {}),
        **{name: reporter for name, reporter in chosen.items() if rows and name not in asked},
    }
    unprinted: OSError | None = None
    for name, reporter in reporters.items():
        messages = reporter.publish(folder)
        if name in chosen:
            asked.append(name)
            with suppress(OSError):
                file.write_text("\n".join(asked), encoding="utf-8")
        try:
            for message in messages if unprinted is None else ():
                out.print(message, markup=False, highlight=False, soft_wrap=True)
        except OSError as error:  # stdout is a closed pipe, or a file on a full disk
            unprinted = error
    if isinstance(unprinted, BrokenPipeError):
        raise unprinted
    if unprinted:
        with suppress(OSError):
            why = unprinted.strerror or unprinted
            print(f"the table cannot be printed: {why}. The results are in {folder}", file=sys.stderr, flush=True)
    return rows


def exit_code(rows: Sequence[Row]) -> int:
    """Return 1 if a case failed, or if none could be run and checked; else 0."""
    useful = any(row.status == "ok" or row.metrics.get("correct") is True for row in rows)
    return 0 if useful and not any(row.failed for row in rows) else 1


def options(plan: Plan) -> tuple[Launcher, Mapping[str, Reporter]]:
    """Return the launcher of ``plan`` and its reporters by name. Check its analyses. Raises BadInput."""
    if plan.conclusion:
        from runner.report import conclusion

        for analysis in plan.conclusion:
            conclusion.check(analysis, plan.cases)
    launcher = _option("runner.execute", "launcher", plan.launcher, "run")
    return launcher, {one.name: _option("runner.report", "log", one, "publish") for one in plan.log}


def _option(room: str, group: str, choice: Choice, method: str) -> Any:
    try:
        cls = schema.find(room, choice.name, method)
    except LookupError as error:
        raise BadInput(f"{group}={choice.name}: {error}") from None
    return schema.build(cls, choice.fields, group if group == "launcher" else f"{group}.{choice.name}")


def device_names(plan: Plan) -> set[str] | None:
    """Return the names of the GPUs that ``plan`` will use, "cpu" without any; None if they are not known."""
    if plan.launcher.name != "local" or all(case.device == "cpu" for case in plan.cases):
        return None
    from runner.device import gpus

    found = gpus.visible()
    if not found and str(plan.launcher.fields["gpus"]) in gpus.ANYWHERE:
        return {"cpu"}
    return gpus.names(gpus.choose(str(plan.launcher.fields["gpus"]), found))
