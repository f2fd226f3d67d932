"""Compose, run the grid, show it, log it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner import compose, options, run_dir, schema
from runner.case import Choice, Plan
from runner.errors import BadInput
from runner.journal import Journal
from runner.launch import Launcher, Ready, Started
from runner.log import Logger
from runner.rounds import Rounds
from runner.row import Row

if TYPE_CHECKING:
    from rich.console import Console

    from runner.report.derive import Names


def main(argv: Sequence[str]) -> int:
    """The exit code. Raises BadInput before anything is started."""
    plan = compose.plan(argv)
    if plan is None:  # --help, --cfg: Hydra has answered
        return 0
    launcher: Launcher = _option("launch", "launcher", plan.launcher)
    logger: Logger = _option("log", "log", plan.log)
    try:
        folder = run_dir.claim(plan.output_dir, plan.name)
        run_dir.write_configs(folder, plan)
        environment = run_dir.environment(argv)
        run_dir.write_environment(folder, environment)
    except OSError as error:
        raise BadInput(f"output_dir={plan.output_dir}: cannot write there: {error.strerror or error}") from None
    rows, rounds, signum = execute(plan, launcher, folder, environment)
    conclude(plan, rows, rounds, folder, logger)
    return exit_code(rows) if signum is None else 128 + signum


def execute(
    plan: Plan, launcher: Launcher, folder: Path, environment: dict[str, Any]
) -> tuple[list[Row], list[Rounds], int | None]:
    """All rows and rounds there are at the end, each in the journal already; and the signal that ended it early."""
    from runner.report.live import LiveReport

    rows: list[Row] = []
    compared: list[Rounds] = []
    signal.signal(signal.SIGTERM, _interrupt)
    with Journal(folder) as journal, LiveReport(plan, _console()) as report:
        try:
            for event in launcher.run(plan.cases, str(folder / "worker.log")):
                match event:
                    case Ready():
                        run_dir.write_environment(folder, environment | {"worker": event.environment})
                    case Started():
                        journal.start(event.case)
                        report.started(event.case)
                    case Row():
                        journal.row(event)
                        rows.append(event)
                        report.done(event)
                    case Rounds():
                        journal.rounds(event)
                        compared.append(event)
                        report.compared(event)
        except KeyboardInterrupt as interrupt:
            return rows, compared, interrupt.args[0] if interrupt.args else signal.SIGINT
    return rows, compared, None


def _interrupt(signum: int, frame: object) -> None:
    """Ask politely, and the table of what there is is still written."""
    raise KeyboardInterrupt(signum)


def conclude(plan: Plan, rows: Sequence[Row], rounds: Sequence[Rounds], folder: Path, logger: Logger) -> None:
    """The table on the terminal, ``rows.csv``, and the loggers: all of it after the last timing."""
    from runner.report import frame, terminal
    from runner.report.derive import Names, lines

    console, names, derived = _console(), Names(plan.cases), lines(rows, plan.baseline, rounds)
    frame.frame(derived).to_csv(folder / "rows.csv", index=False)
    if derived:
        console.print(terminal.table(derived, names, console.width, plan.columns, _title(plan, rows, names)))
    says = [*terminal.notes([line.row for line in derived], names), f"{_tally(rows, plan)}. Results: {folder}"]
    for line in (*says, *logger.publish(folder)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def exit_code(rows: Sequence[Row]) -> int:
    """1 if a case failed, or if not one of them could be run and checked."""
    useful = any(row.status == "ok" or row.metrics.get("correct") is True for row in rows)
    return 0 if useful and not any(row.failed for row in rows) else 1


def _option(room: str, group: str, choice: Choice) -> Any:
    try:
        cls = options.find(f"runner.{room}", choice.name)
    except LookupError as error:
        raise BadInput(f"{group}={choice.name}: {error}") from None
    return schema.build(cls, choice.fields, group)


def _console() -> Console:
    """The terminal as it is; a pipe or a file has room for the whole table."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=400)


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
    return f"{len(plan.cases)} cases: {text}" + (f", {missing} not run" if missing else "")
