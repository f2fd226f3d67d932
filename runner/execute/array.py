"""The tasks of an array, as their parent sees them: what they write down, whether they live, and who takes over if not.

A task writes what it does into a journal of its own, which this process reads. So tasks go on if this process ends, and
one that is queued again goes on where it was. submitit's results are not looked at: a task that was stopped has none.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.device import processes
from runner.execute import Event, Notice, Started, remote
from runner.execute.part import Part, Shard
from runner.execute.remote import one_line
from runner.experiment.case import Case
from runner.experiment.errors import BadInput
from runner.experiment.results import Comparison, Row
from runner.store import journal
from runner.store.fingerprint import Fingerprints, difference

MOST_ATTEMPTS = 2  # tasks for a case
SETTLE_POLLS = 6  # for which a task must have ended: Slurm may queue it again, and files come late
GOING_ON = frozenset(  # states that are not the end; QUEUED is submitit's own
    ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING", "QUEUED")
) | {"RESV_DEL_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "SUSPENDED"}
UNKNOWN = "UNKNOWN"  # nobody has said yet


class _Task:
    """A part, and the job that does it. ``given`` are those of its cases that are wanted."""

    def __init__(self, part: Part, given: Mapping[str, Case], job: Any, attempt: int = 1, *, old: bool = False) -> None:
        self.part, self.job, self.attempt, self.old = part, job, attempt, old
        self.given, self.owed = given, {**given}  # owed: without a row
        self.started: Counter[str] = Counter()
        self.gone_since = 0.0  # by the monotonic clock; 0: it goes on
        self.done = False  # with all of it, so it says
        self.misread = ""  # what was wrong with its records
        self.stale = False  # it works with other sources than there are now

    @property
    def name(self) -> str:
        """For people."""
        return f"task {self.part.folder.name} (job {self.part.job.get('job', 'unknown')})"


class Array:
    """The tasks of a run, whose folder is ``folder``. ``executor`` makes one of submitit's."""

    def __init__(
        self, folder: Path, executor: Callable[[], Any], local: Mapping[str, Any], gpus: int, poll_s: float
    ) -> None:
        self._folder, self._executor, self._local, self._gpus = folder, executor, local, gpus
        self._settle_s = SETTLE_POLLS * poll_s
        self._tasks: list[_Task] = []
        self.open: list[_Task] = []  # those of them that may have more to say
        self._made_with = Fingerprints()

    def take_in(self, cases: Sequence[Case]) -> Generator[Event, None, list[Case]]:
        """What tasks of an earlier session have done since it ended. Returned are the cases that new tasks are to do.

        Tasks that still run go on, unless they work with other sources than there are now.
        """
        parts = [Part(folder) for folder in sorted((self._folder / "parts").glob("[0-9]*"))]
        known = journal.load(self._folder).rows if parts else {}  # what has a row is to be done once more
        free = {case.key: case for case in cases if case.key not in known}
        rows = 0
        for part in parts:
            facts = part.job
            task = _Task(part, _wanted(part, free), _earlier_job(facts), int(facts.get("attempt", 1)), old=True)
            for event in self._hear(task, last=task.job is None):
                if not isinstance(event, Notice) and not (isinstance(event, Comparison) and event.reason):  # old news
                    yield event
                    rows += isinstance(event, Row)
            lives = task.job is not None and not task.done and not part.is_void and _state(task.job) in GOING_ON
            if lives and task.owed and not task.stale:
                self._add(task)
                taken = set(task.given)
            else:
                part.give_up()
                if lives:
                    _cancel(task.job)
                taken = task.given.keys() - task.owed.keys()
            for key in taken:
                del free[key]
        if rows or self.open:
            yield Notice(f"from an earlier session: rows {rows}, tasks that go on {len(self.open)}")
        return [case for case in cases if case.key in known or case.key in free]

    def submit(self, shares: Sequence[Sequence[Case]], before: _Task | None = None) -> Iterator[Event]:
        """A task for each of ``shares``; ``before`` had begun with them. Raises BadInput."""
        if not shares:
            return
        parts = [Part.create(self._folder / "parts", share) for share in shares]
        shards = [Shard(str(part.folder), self._local, self._gpus) for part in parts]
        try:
            with _importable():
                executor = self._executor()
                jobs = executor.submit_array(shards)
        except Exception as error:  # submitit raises a dozen kinds
            for part in parts:
                part.give_up()
            raise BadInput(f"launcher=slurm: no task could be submitted: {one_line(error)}") from None
        for part, share, job in zip(parts, shares, jobs, strict=True):
            where = {"cluster": executor.cluster, "folder": str(executor.folder)}
            task = _Task(part, {case.key: case for case in share}, job)
            if before:
                task.attempt += before.attempt
                task.started += before.started
            part.job = {"job": job.job_id, "attempt": task.attempt, **where}
            self._add(task)
        ids = ", ".join(dict.fromkeys(job.job_id.partition("_")[0] for job in jobs))
        yield Notice(f"tasks submitted to {executor.cluster}: {len(jobs)} ({ids})")

    def look(self) -> Iterator[Event]:
        """What has come in, and what becomes of tasks that have ended without having done all."""
        for task in [*self.open]:
            news = False
            for event in self._hear(task):
                news = True
                yield event
            gone = "COMPLETED" if task.done else _gone(task.job)
            if not gone or (news and not task.done):
                task.gone_since = 0.0
                continue
            task.gone_since = task.gone_since or time.monotonic()
            if task.done or time.monotonic() >= task.gone_since + self._settle_s:
                self.open.remove(task)
                yield from self._hear(task, last=True)
                if task.owed:
                    yield from self._replace(task, gone + task.misread)

    def last_words(self) -> Iterator[Event]:
        """What has come in already."""
        for task in self.open:
            yield from self._hear(task)

    def cancel(self) -> None:
        """End the tasks that have not ended; on this machine, leave no process of any of them."""
        for task in self.open:
            task.part.give_up()
            if task.part.job.get("cluster") != "local":
                _cancel(task.job)
        for task in self._tasks:
            _end_here(task.part.job)

    def _add(self, task: _Task) -> None:
        self._tasks.append(task)
        self.open.append(task)

    def _hear(self, task: _Task, *, last: bool = False) -> Iterator[Event]:
        """A start is told with the row that it led to: what becomes of this process is not the case's fault."""
        for record in task.part.news(last):
            task.done = task.done or record["record"] == "done"
            try:
                event = remote.from_record(record, task.given)
            except (ValueError, KeyError, TypeError) as error:
                task.misread = f", having written what is of another version: {one_line(error)}"
                continue
            if isinstance(event, Started):
                task.started[event.case.key] += 1
            elif isinstance(event, Row):
                yield from self._row(task, event)
            elif event is not None:
                yield event

    def _row(self, task: _Task, row: Row) -> Iterator[Event]:
        if task.old and difference(self._made_with.of(row.case), row.fingerprint):
            task.stale = True
        elif task.owed.pop(row.case.key, None):
            for _ in range(task.started[row.case.key]):
                yield Started(row.case)
            yield row

    def _replace(self, task: _Task, state: str) -> Iterator[Event]:
        """``task`` has ended, and has not done all."""
        if task.attempt < MOST_ATTEMPTS:
            owed = [*task.owed.values()]
            suspects = [case for case in owed if task.started[case.key]] or owed[:1]  # it may not have come to say so
            rest = [case for case in owed if case not in suspects]
            yield Notice(f"{task.name} ended as {state}; cases left for another: {len(task.owed)}")
            try:
                yield from self.submit([[*rest, *suspects]], task)
            except BadInput as error:
                state += f", and then {error}"
            else:
                return
        for case in task.owed.values():
            yield remote.lost(case, f"its tasks ended before it was done, the last one, {task.name}, as {state}")


def _wanted(part: Part, free: Mapping[str, Case]) -> dict[str, Case]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # its writer was killed: nobody has it
        return {case.key: free[case.key] for case in part.cases if case.key in free}
    return {}


def _gone(job: Any) -> str:
    """How the job has ended; "" if it has not, or nobody knows."""
    job.done()  # asks Slurm, not too often; runs it, if it is to be run in this process
    state = _state(job)
    if job.paths.result_pickle.exists():  # it has returned, or raised, though Slurm has not told yet
        return "FAILED" if state in GOING_ON or state == UNKNOWN else state
    return "" if state in GOING_ON or state == UNKNOWN else state


def _state(job: Any) -> str:
    """``CANCELLED by 1000`` is CANCELLED."""
    return (str(job.state).upper().split() or [UNKNOWN])[0]


def _cancel(job: Any) -> None:
    with contextlib.suppress(OSError):
        job.cancel(check=False)


def _earlier_job(facts: Mapping[str, Any]) -> Any:
    """The job of an earlier session under Slurm. What such a session has left on this machine is ended: None."""
    if facts.get("cluster") == "slurm":
        from submitit import SlurmJob

        return SlurmJob(folder=facts["folder"], job_id=facts["job"])
    _end_here(facts)
    return None


def _end_here(facts: Mapping[str, Any]) -> None:
    """End what submitit calls a controller, and with it its task, if the job runs on this machine."""
    with contextlib.suppress(OSError):
        if facts.get("cluster") == "local":
            command = Path(f"/proc/{facts['job']}/cmdline").read_bytes()
            if b"submitit.local._local" in command and facts["folder"].encode() in command:
                processes.kill_tree(int(facts["job"]))


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """Tasks get this process's environment: let them find the packages where it does."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = processes.environment()["PYTHONPATH"]
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
