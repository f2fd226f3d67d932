"""Run a grid of cases and report it. This is the default: the word run may be left out."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import config
from ..config.grid import validate
from ..execute import CannotStart, Launcher, Notice, Ready, Started
from ..execute.spawn import Zygote
from ..records.bad_input import BadInput
from ..records.case import Choice
from ..records.options import option_class
from ..records.paired_rounds import PairedRounds
from ..records.plan import OUTPUTS, Plan
from ..records.row import Row
from ..records.schema import build
from ..report import Hint, Reporter
from ..store import run_folder
from ..store.session import Session
from ._advice import advice
from ._interrupts import Interrupts

if TYPE_CHECKING:
    from ..report.live import LiveReport


MULTIRUN = ("-m", "--multirun")


def main(argv: Sequence[str]) -> int:
    """Return the exit code. Raises BadInput before any case is started."""
    with early_zygote(argv) as early:
        return carry_out(config.plan(argv), argv, early, typed=True)[1]


def as_sweep(words: Sequence[str]) -> list[str]:
    """Return ``words`` with ``-m``, for a command that always sweeps."""
    return [*words, *([] if {*words} & {*MULTIRUN} else MULTIRUN[:1])]


def early_zygote(argv: Sequence[str]) -> AbstractContextManager[Zygote | None]:
    """Start a process that imports torch while the command line is read.

    None if cases will probably not run on this machine, as for ``--help`` and ``launcher=ray``.
    """
    remote = ("launcher=ray", "launcher=slurm", "--")
    elsewhere = any(word.startswith(remote) and word != "--multirun" for word in argv)
    return closing(Zygote()) if sys.platform == "linux" and not elsewhere else nullcontext()


def carry_out(
    plan: Plan,
    argv: Sequence[str],
    early: Zygote | None = None,
    extended: Session | None = None,
    *,
    typed: bool = False,
) -> tuple[Session, int]:
    """Run the grid and report it. Return its session, whose journal is closed, and the exit code: 0 or 1.

    ``argv`` is recorded as the command line. ``extended``: a session of this process, in whose folder the run goes on
    without a table. ``typed``: advise on a smaller run on a CPU, and on going on after an interrupt.
    Raises BadInput before any case is started, SystemExit after an interrupt.
    """
    launcher, reporters = options(plan)
    # Asking the driver takes a process of its own. Meanwhile the journal is read.
    names = ThreadPoolExecutor(1).submit(device_names, plan).result if plan.resume.of else lambda: None
    if extended:
        extended.extend(plan)
    with extended or Session(plan, argv, names) as session, Interrupts() as interrupts:
        if plan.whole:
            validate(session.cases)
        for line in session.summary():
            print(line, flush=True)
        if typed and (sentence := advice(session.cases, plan, argv, device_names)):
            print(f"runner: {sentence}", file=sys.stderr, flush=True)
        ended = execute(session, launcher, interrupts, early)
        errors = session.give_up(ended) if isinstance(ended, OSError) else [str(ended)] if ended else []
        for error in errors:
            print(f"runner: {error}", file=sys.stderr, flush=True)
        rows, lost = conclude(session, reporters, argv, shown=extended is None)
    if interrupts.first:
        if len(rows) < len(session.plan.cases):
            words = "resume=last" if plan.output_dir == OUTPUTS else f"resume={shlex.quote(str(session.folder))}"
            text = f"to go on: python -m runner {words}" if typed else "nothing is decided: run it again"
            print(f"runner: interrupted; {text}", file=sys.stderr, flush=True)
        raise SystemExit(128 + interrupts.first)
    return session, 1 if ended or lost else exit_code(rows)


def execute(
    session: Session, launcher: Launcher, interrupts: Interrupts, early: Zygote | None = None
) -> OSError | CannotStart | None:
    """Run the cases of ``session`` until an interrupt. Return the error that ended the run early, if any."""
    if not session.cases:
        return None
    from ..report.console import console
    from ..report.live import LiveReport

    session.read_sources()
    events: Any = launcher.run(session.cases, str(session.folder / "worker.log"), early)  # closing it ends its workers
    with LiveReport(session.plan, console(), len(session.cases)) as live, closing(events):
        try:
            interrupts.deliver(events, partial(_on_event, session, live))
            if warning := session.settle():
                live.notice(warning)
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
        case PairedRounds():
            corrected = session.compared(event)
            live.compared(event, corrected)


def conclude(
    session: Session, chosen: Mapping[str, Reporter], argv: Sequence[str] = (), *, shown: bool = True
) -> tuple[list[Row], bool]:
    """Ask the terminal, both tables and the ``chosen`` reporters for their reports, and print them if ``shown``.

    A chosen reporter is not asked about a run without rows, nor twice about the same rows. ``argv``: the command line,
    which may name reporters. Return the grid's rows, and whether ``rows.csv`` could not be written.

    Raises:
        BrokenPipeError: nobody reads stdout any more. All reporters have been asked.

    """
    from ..findings.flat import flat_records
    from ..findings.past import with_cases
    from ..findings.run import Run
    from ..records.columns import DEVICE
    from ..report.case_table import case_table
    from ..report.console import console, say
    from ..report.flat_formats import csv_text
    from ..report.output import ROWS, TABLE, keep
    from ..report.table import markdown_of
    from ..report.terminal import terminal_report

    (rows, rounds), out, folder, plan = session.grid(), console(), session.folder, session.plan
    published = [] if session.rows else run_folder.published(folder)
    sessions = run_folder.earlier_sessions(folder) if {*plan.columns} & {*DEVICE} else ()  # they know the device
    run = Run(folder, plan, rows, rounds, sessions=sessions)
    every = session.everything()  # also rows that are in no table of this session
    whole = run if len(every) == len(rows) else replace(run, rows=every, plan=with_cases(plan, every))
    reports: dict[str, Callable[[], Sequence[Any]]] = {
        "terminal": lambda: terminal_report(run, out.width),
        "csv": lambda: keep(folder / ROWS, csv_text(flat_records(whole.lines))),
        "markdown": lambda: keep(folder / TABLE, markdown_of(case_table(whole, whole.lines))),
        **{name: partial(each.publish, folder) for name, each in chosen.items() if rows and name not in published},
    }
    if not session.rows and (folder / TABLE).exists():
        del reports["markdown"]
    hints = out.is_terminal or any(word.startswith(("log=", "log.")) for word in argv)
    unprinted: OSError | None = None
    lost = False
    for name, report in reports.items():
        messages = report()
        lost |= name == "csv" and bool(messages)
        if name in chosen:
            published.append(name)
            run_folder.set_published(folder, published)
        try:
            for message in messages if (shown or lost) and unprinted is None else ():
                if hints or not isinstance(message, Hint):
                    say(out, message)
        except OSError as error:  # stdout is a closed pipe, or a file on a full disk
            unprinted = error
    if isinstance(unprinted, BrokenPipeError):
        raise unprinted
    if unprinted:
        with suppress(OSError):
            reason = unprinted.strerror or unprinted
            print(f"the table cannot be printed: {reason}. The results are in {folder}", file=sys.stderr, flush=True)
    return rows, lost


def exit_code(rows: Sequence[Row]) -> int:
    """Return 1 if a case failed, or if none could be run and checked, or compiled for another GPU; else 0."""
    useful = any(row.status == "ok" or row.metrics.get("correct") is True or row.only_compiled for row in rows)
    return 0 if useful and not any(row.failed for row in rows) else 1


def options(plan: Plan) -> tuple[Launcher, Mapping[str, Reporter]]:
    """Return the launcher of ``plan`` and its reporters by name. Check its analyses. Raises BadInput."""
    if plan.conclusion:
        from ..findings.conclusion import check

        for analysis in plan.conclusion:
            check(analysis, plan.cases)
    launcher = _option("execute", "launcher", plan.launcher, "run")
    return launcher, {choice.name: _option("report", "log", choice, "publish") for choice in plan.log}


def _option(package: str, group: str, choice: Choice, method: str) -> Any:
    try:
        cls = option_class(package, choice.name, method)
    except LookupError as error:
        raise BadInput(f"{group}={choice.name}: {error}") from None
    return build(cls, choice.fields, group if group == "launcher" else f"{group}.{choice.name}")


def device_names(plan: Plan) -> set[str] | None:
    """Return the names of the GPUs that ``plan`` will use, "cpu" without any; None if they are not known."""
    if plan.launcher.name != "local" or all(case.settings.device == "cpu" for case in plan.cases):
        return None
    from ..device import gpus

    there = gpus.visible()
    if not there and str(plan.launcher.fields["gpus"]) in gpus.ANYWHERE:
        return {"cpu"}
    return gpus.gpu_names(gpus.select_gpus(str(plan.launcher.fields["gpus"]), there))
