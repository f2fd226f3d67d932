"""``launcher=slurm``: an array of tasks under Slurm, through submitit. Each runs a ``Local`` on its share."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from ..device import processes
from ..device.files import text_in
from ..records.bad_input import BadInput
from ..records.case import CaseRecord, Scalar
from ..records.paired_rounds import PairedRounds
from ..records.row import Row
from ..records.schema import OneLine
from ..store import journal
from ..store.fingerprint import Fingerprints, difference
from ..store.journal import Contents
from ..store.resume import lost_row
from . import Event, Limits, Notice, Seconds, Started, shards
from .local import Local
from .shards import MOST_DEATHS_IN_A_ROW, Holder, Ledger, need, one_line
from .slurm_parts import Part, Shard, event_of
from .spawn import Zygote

MOST_REQUEUES = 100  # for a task that reaches its time limit; cases that are too long are given up earlier
FOLDER = "slurm"  # holds submitit's files, in the run's folder, from which a task is unpickled
NUMBERS = ("array_parallelism", "signal_delay_s")  # options of submitit that sbatch does not know
NODES = ("nodes", "N", "ntasks", "n", "ntasks-per-node", "ntasks_per_node")  # options that would start a task twice
SETTLE_POLLS = 6  # polls until an ended task counts as such: Slurm may queue it again, and files may come late
GOING_ON = frozenset(  # states before the end; QUEUED is submitit's own
    ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING", "QUEUED")
) | {"RESV_DEL_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "SUSPENDED"}


@dataclass(frozen=True, kw_only=True)
class Slurm(Limits):
    """An array of tasks. The clusters ``local`` and ``debug`` work without Slurm, to try it out."""

    cluster: Literal["slurm", "local", "debug"]
    partition: OneLine | None
    account: OneLine | None
    time_min: Annotated[int, "at least 1"]
    gpus_per_task: Annotated[int, "at least 0"]
    cpus_per_task: Annotated[int, "at least 1"]
    mem_gb: Annotated[int, "at least 1"] | None
    tasks: Annotated[int, "at least 1"]
    extra: tuple[str, ...]
    poll_s: Seconds

    def __post_init__(self) -> None:
        need("submitit", "slurm")
        if self.cluster == "slurm" and not all(map(shutil.which, ("srun", "sbatch"))):
            raise ValueError("cluster: no srun and sbatch here; log in to the cluster, or give local to try it out")
        for pair in self.extra:
            name, equals, value = pair.partition("=")
            if not name or not equals or (name in NUMBERS and not value.isdigit()):
                raise ValueError(f"extra: {pair!r} is not name=value, as in [qos=high,signal_delay_s=120]")
            if name in NODES:
                raise ValueError(f"extra: {name} is not allowed: a task, with all ranks of a case, runs on one node")

    def run(self, cases: Sequence[CaseRecord], log_path: str, early: Zygote | None = None) -> Iterator[Event]:
        """Yield one row per case. Raises BadInput if Slurm does not accept the tasks."""
        folder = Path(log_path).parent.absolute()
        os.environ["PYTHONPATH"] = processes.environment()["PYTHONPATH"]  # tasks inherit it and find the packages
        gpus = shards.gpus_needed(cases, self.gpus_per_task)
        array = Array(folder, lambda: self._executor(folder / FOLDER, gpus), shards.local(self, gpus), self.poll_s)
        try:
            array.ledger.add((yield from array.take_over(cases)))
            yield from array.submit(array.ledger.deal(self.tasks))
            while array.open:
                time.sleep(self.poll_s)
                yield from array.poll()
        except KeyboardInterrupt:
            yield from array.drain()
            raise
        finally:
            array.cancel()

    def _executor(self, folder: Path, gpus: int) -> Any:
        """Return an executor of submitit, which raises an exception for wrong settings."""
        from submitit import AutoExecutor

        pairs = [tuple(pair.split("=", 1)) for pair in self.extra]
        more = {name: True if value == "true" else value for name, value in pairs if name not in (*NUMBERS, "setup")}
        requeues = {f"{name}_max_num_timeout": MOST_REQUEUES for name in ("slurm", "local")}
        executor = AutoExecutor(folder, cluster=self.cluster, **requeues)
        executor.update_parameters(
            name="kernel-runner",
            timeout_min=self.time_min,
            cpus_per_task=self.cpus_per_task,
            gpus_per_node=gpus or None,  # of the node, for this task, which is alone in its job
            mem_gb=self.mem_gb,
            slurm_partition=self.partition,
            slurm_account=self.account,
            slurm_setup=[value for name, value in pairs if name == "setup"] or None,
            slurm_additional_parameters=more or None,
            **{f"slurm_{name}": int(value) for name, value in pairs if name in NUMBERS},
        )
        return executor


class _Task(Holder):
    """A part and the job that runs it. Without ``job``, an earlier session has submitted it."""

    def __init__(self, part: Part, cases: Iterable[CaseRecord], job: Any = None) -> None:
        self.facts = part.job
        super().__init__(f"task {part.folder.name} (job {self.facts.get('job', 'unknown')})", cases)
        self.part, self.old = part, job is None
        self.job = _earlier_job(self.facts, part.folder.parents[1] / FOLDER) if self.old else job
        self.gone_since = 0.0  # on the monotonic clock; 0 while it runs
        self.cases = {case.key: case for case in part.cases}  # including cases that have rows in the run
        self.started: dict[str, Scalar] = {}  # start of the cases of its rows, by key
        self.done = False  # it has written that all its cases have rows
        self.stale = False  # it runs sources that have changed since


class Array:
    """The tasks of the run in ``folder``. ``executor()`` makes submitit's executor; ``local`` runs on each machine."""

    def __init__(self, folder: Path, executor: Callable[[], Any], local: Local, poll_s: float) -> None:
        self._folder, self._executor, self._local = folder, executor, local
        self._settle_s = SETTLE_POLLS * poll_s
        self.open: list[_Task] = []  # tasks whose journals may grow
        self._fingerprints = Fingerprints()
        self._started: dict[str, Scalar] = {}  # start of the cases of the run's rows, by key
        self._rounds: list[PairedRounds] = []  # from earlier sessions of the run
        self.ledger = Ledger()

    def take_over(self, cases: Sequence[CaseRecord]) -> Generator[Event, None, list[CaseRecord]]:
        """Yield events of an earlier session's tasks since it ended. Return the cases for new tasks.

        Tasks that still run go on, unless their sources have changed.
        """
        parts = [Part(folder) for folder in sorted((self._folder / "parts").glob("[0-9]*"))]
        before = journal.load(self._folder) if parts else Contents()
        known, self._rounds = before.rows, before.rounds  # a case that has a row runs again
        self._started = {key: row.metrics.get("started_at") for key, row in known.items()}
        free = {case.key: case for case in cases if case.key not in known}
        rows = 0
        for part in parts:
            task = _Task(part, [free[case.key] for case in part.cases if case.key in free])
            for event in self._read(task):
                if not isinstance(event, Notice) and not (isinstance(event, PairedRounds) and event.reason):
                    yield event
                    rows += isinstance(event, Row)
            lives = task.job is not None and not task.done and _state(task.job) in GOING_ON
            if lives and task.owed and not task.stale:
                self.open.append(task)
                taken = set(task.given)
            else:
                if lives:
                    _cancel(task.job)
                taken = task.given.keys() - task.owed.keys()
            for key in taken:
                del free[key]
        if rows or self.open:
            yield Notice(f"from an earlier session: rows {rows}, tasks that go on {len(self.open)}")
        return [case for case in cases if case.key in known or case.key in free]

    def submit(self, shares: Sequence[Sequence[CaseRecord]]) -> Iterator[Event]:
        """Submit a task for each of ``shares``. Raises BadInput."""
        if not shares:
            return
        parts = [Part.create(self._folder / "parts", share) for share in shares]
        try:
            executor = self._executor()
            jobs = executor.submit_array([Shard(str(part.folder), self._local) for part in parts])
        except Exception as error:  # submitit raises a dozen types
            raise BadInput(f"launcher=slurm: no task could be submitted: {one_line(error)}") from None
        for part, share, job in zip(parts, shares, jobs, strict=True):
            part.job = {"job": job.job_id, "cluster": executor.cluster}
            self.open.append(_Task(part, share, job))
        ids = ", ".join(dict.fromkeys(job.job_id.partition("_")[0] for job in jobs))
        yield Notice(f"tasks submitted to {executor.cluster}: {len(jobs)} ({ids})")

    def poll(self) -> Iterator[Event]:
        """Yield new events, and replace tasks that have ended without a row for each case."""
        for task in [*self.open]:
            events = [*self._read(task)]
            yield from events
            state = "COMPLETED" if task.done else _end_state(task.job)
            if not state or (events and not task.done):
                task.gone_since = 0.0
                continue
            task.gone_since = task.gone_since or time.monotonic()
            if task.done or time.monotonic() >= task.gone_since + self._settle_s:
                self.open.remove(task)
                yield from self._read(task)
                if task.owed:
                    yield from self._replace(task, state)

    def drain(self) -> Iterator[Event]:
        """Yield the events that have arrived."""
        for task in self.open:
            yield from self._read(task)

    def cancel(self) -> None:
        """End the tasks that have not ended."""
        for task in self.open:
            if task.facts["cluster"] == "local":
                _end_here(task.facts, self._folder / FOLDER)
            else:
                _cancel(task.job)

    def _read(self, task: _Task) -> Iterator[Event]:
        """Yield the new events of ``task``.

        A start is yielded with its row, since a case is not in flight in this process, whose death it cannot cause.
        """
        for record in task.part.new_records():
            task.done = task.done or record["record"] == "done"
            event = event_of(record, task.cases)
            if isinstance(event, Row):
                task.started[event.case.key] = event.metrics.get("started_at")
            if isinstance(event, PairedRounds) and not self._is_wanted(task, event):
                continue
            if isinstance(event, Row | Started) and event.case.key not in task.given:
                continue
            if task.old and isinstance(event, Row) and difference(self._fingerprints.now(event), event.fingerprint):
                task.stale = True
                continue
            if event is None or self.ledger.note(task, event) is None:
                continue
            if isinstance(event, Row):
                self._started[event.case.key] = task.started[event.case.key]
                yield from [Started(event.case)] * self.ledger.begun.pop(event.case.key, 0)
            if not isinstance(event, Started):
                yield event

    def _is_wanted(self, task: _Task, rounds: PairedRounds) -> bool:
        """Return whether ``rounds`` belong to valid rows and are new to this run."""
        starts = [(self._started.get(key), task.started.get(key, "no row")) for key in rounds.batches_us]
        return all(in_run == in_task for in_run, in_task in starts) and not (starts and rounds in self._rounds)

    def _replace(self, task: _Task, state: str) -> Iterator[Event]:
        """Submit a new task for the cases of ``task``, which has ended as ``state``."""
        yield from self.ledger.died(task, f"it ended as {state}")
        share: list[CaseRecord] = []
        while cases := self.ledger.take(self.ledger.left):
            share += cases
        try:
            if self.ledger.deaths_in_a_row >= MOST_DEATHS_IN_A_ROW:
                raise BadInput(f"{MOST_DEATHS_IN_A_ROW} tasks in a row have died without a row")
            yield from self.submit([share] if share else [])
        except BadInput as error:
            yield from (lost_row(case, f"{task.name} ended as {state}, and then {error}") for case in share)


def _end_state(job: Any) -> str:
    """Return the state in which the job has ended; "" if it has not, or if that is unknown."""
    job.done()  # queries Slurm, at a limited rate; with cluster=debug it runs the job
    state = _state(job)
    if state not in GOING_ON and state != "UNKNOWN":  # from sacct or submitit
        return state
    return "FAILED" if job.paths.result_pickle.exists() else ""  # it has ended, and Slurm does not report it yet


def _state(job: Any) -> str:
    """Return the first word of the state: ``CANCELLED by 1000`` is CANCELLED."""
    return (str(job.state).upper().split() or ["UNKNOWN"])[0]


def _cancel(job: Any) -> None:
    with contextlib.suppress(OSError):
        job.cancel(check=False)


def _earlier_job(facts: Mapping[str, str], folder: Path) -> Any:
    """Return the job of an earlier session under Slurm. On this machine, end what the session has left; return None."""
    if facts.get("cluster") == "slurm":
        from submitit import SlurmJob

        return SlurmJob(folder=folder, job_id=facts["job"])
    _end_here(facts, folder)
    return None


def _end_here(facts: Mapping[str, str], folder: Path) -> None:
    """End submitit's controller, and with it the task, if the job runs on this machine. Its files are in ``folder``."""
    command = text_in(f"/proc/{facts['job']}/cmdline") if facts.get("cluster") == "local" else ""
    if "submitit.local._local" in command and str(folder) in command:
        processes.kill_tree(int(facts["job"]))
