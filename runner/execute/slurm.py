"""``launcher=slurm``: an array of tasks under Slurm, through submitit, each with a ``Local`` and a share of the grid.

What the tasks do meanwhile is followed in ``runner.execute.array``.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from runner.execute import Event, remote
from runner.execute.array import Array
from runner.execute.local import Seconds
from runner.execute.remote import Limits, need
from runner.experiment.case import Case
from runner.experiment.schema import Line, Program

MOST_REQUEUES = 100  # of a task whose time has come; cases that are too long for it are given up before
NUMBERS = ("array_parallelism", "signal_delay_s")  # what submitit itself takes, and sbatch does not know


@dataclass(frozen=True, kw_only=True)
class Slurm(Limits):
    """``cluster`` local and debug need no Slurm: they are for trying out."""

    cluster: Literal["slurm", "local", "debug"]
    partition: Line | None
    account: Line | None
    time_min: Annotated[int, "at least 1"]
    gpus_per_task: Annotated[int, "at least 0"]
    cpus_per_task: Annotated[int, "at least 1"]
    mem_gb: Annotated[int, "at least 1"] | None
    tasks: Annotated[int, "at least 1"]
    extra: tuple[Program, ...]
    folder: Line
    poll_s: Seconds

    def __post_init__(self) -> None:
        need("submitit", "slurm")
        if self.cluster == "slurm" and not all(map(shutil.which, ("srun", "sbatch"))):
            raise ValueError("cluster: no srun and sbatch here; log in to the cluster, or give local to try it out")
        for pair in self.extra:
            name, equals, value = pair.partition("=")
            if not name or not equals or (name in NUMBERS and not value.isdigit()):
                raise ValueError(f"extra: {pair!r} is no name=value, as in [qos=high,signal_delay_s=120]")

    def run(self, cases: Sequence[Case], log_path: str) -> Iterator[Event]:
        """One row per case. Raises BadInput if Slurm does not take the tasks."""
        folder = Path(log_path).parent.absolute()
        gpus = 0 if all(case.device == "cpu" for case in cases) else self.gpus_per_task
        array = Array(folder, lambda: self._executor(folder / self.folder, gpus), self.local(gpus), gpus, self.poll_s)
        try:
            left = yield from array.take_in(cases)
            yield from array.submit(self._shares(left))
            while array.open:
                time.sleep(self.poll_s)
                yield from array.look()
        except KeyboardInterrupt:
            yield from array.last_words()
            raise
        finally:
            array.cancel()

    def _shares(self, cases: Sequence[Case]) -> list[list[Case]]:
        """Of each task: sizes are dealt out in turn, for neighbours take about as long."""
        order = {case.key: (case.replica, place) for place, case in enumerate(cases)}
        problems = remote.problems(cases)
        hands = [problems[place :: self.tasks] for place in range(min(self.tasks, len(problems)))]
        return [
            sorted((case for problem in hand for case in problem), key=lambda case: order[case.key]) for hand in hands
        ]

    def _executor(self, folder: Path, gpus: int) -> Any:
        """From submitit, which raises whatever it finds wrong with the settings."""
        from submitit import AutoExecutor

        pairs = [tuple(pair.split("=", 1)) for pair in self.extra]
        more = {name: True if value == "true" else value for name, value in pairs if name not in (*NUMBERS, "setup")}
        requeues = {f"{name}_max_num_timeout": MOST_REQUEUES for name in ("slurm", "local")}
        executor = AutoExecutor(folder, cluster=self.cluster, **requeues)
        executor.update_parameters(
            name="kernel-runner",
            timeout_min=self.time_min,
            cpus_per_task=self.cpus_per_task,
            gpus_per_node=gpus or None,  # a node of a task, that is: the task is alone in its job
            mem_gb=self.mem_gb,
            slurm_partition=self.partition,
            slurm_account=self.account,
            slurm_setup=[value for name, value in pairs if name == "setup"] or None,
            slurm_additional_parameters=more or None,
            **{f"slurm_{name}": int(value) for name, value in pairs if name in NUMBERS},
        )
        return executor
