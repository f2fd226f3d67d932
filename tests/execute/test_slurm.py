"""``launcher=slurm``: by submitit's local executor, with a stand-in for Slurm's commands, and with fake jobs."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from runner.device.gpus import Gpu
from runner.execute import Notice, Ready, Started, slurm
from runner.execute.local import Local
from runner.execute.shards import Ledger
from runner.execute.slurm import Array, Slurm
from runner.execute.slurm_parts import Part, PartJournal, Shard
from runner.records import schema
from runner.records.bad_input import BadInput
from runner.records.case import CaseRecord, Choice
from runner.records.paired_rounds import PairedRounds
from runner.records.row import Row
from runner.records.settings import Settings
from runner.store import journal
from runner.store.fingerprint import Fingerprints
from runner.store.journal import Journal

CONF = Path(__file__).resolve().parents[2] / "conf"
SETTINGS = yaml.safe_load((CONF / "launcher" / "slurm.yaml").read_text())
LIMITS = {name: value for name, value in SETTINGS.items() if name.endswith("_limit_s")}
SETTINGS |= {"cluster": "local", "tasks": 2, "gpus_per_task": 0, "poll_s": 0.2}
LOCAL = Local(**LIMITS | {"gpus": 0, "precompile": 0})
QUICK = {"samples": 20, "max_s": 0.02, "paired_rounds": 20, "warmup_s": 0.0, "measured_peak": False}
BENCHMARK = yaml.safe_load((CONF / "measure" / "benchmark.yaml").read_text()) | QUICK
del BENCHMARK["quick"]

USER = """
import os, pathlib, signal, time, torch
HERE = pathlib.Path(__file__).parent

def right(x): return torch.nn.functional.gelu(x, approximate="tanh")
def other(x): return right(x)

def in_flight(journal): return journal.count('"record":"start"') > journal.count('"record":"row"')
def to_task(signum):
    status = pathlib.Path(f"/proc/{os.getppid()}/status").read_text()  # of what this process was forked from
    task = int(status.partition("PPid:")[2].split()[0])
    files = [os.path.realpath(file) for file in pathlib.Path(f"/proc/{task}/fd").iterdir()]
    (journal,) = [pathlib.Path(file) for file in files if file.endswith("rows.jsonl")]
    while not in_flight(journal.read_text()): time.sleep(0.01)  # the task writes down that it has begun
    os.kill(task, signum)
    time.sleep(1000)
def kills_once(x):
    if not (HERE / "killed").exists():
        (HERE / "killed").touch()
        to_task(signal.SIGKILL)
    return right(x)
def preempted_once(x):
    if not (HERE / "preempted").exists():
        (HERE / "preempted").touch()
        to_task(signal.SIGUSR2)
    return right(x)
"""

SLURM = """#!{python}
# sbatch, srun, sacct, scancel and scontrol of a cluster that is this machine; what it knows is in the folder beside.
import os, re, signal, subprocess, sys, time
from pathlib import Path

command, words = Path(sys.argv[0]).name, sys.argv[1:]
jobs = Path(sys.argv[0]).parent / "jobs"
quiet = {{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}}
if words[0] == "node":
    _, job, script = words
    main, _, task = job.partition("_")
    env = dict(os.environ, SLURM_JOB_ID=main, SLURM_PROCID="0")
    env |= {{"SLURM_ARRAY_JOB_ID": main, "SLURM_ARRAY_TASK_ID": task}} if task else {{}}
    for _ in range(3):
        (jobs / job).write_text("RUNNING")
        code = subprocess.run(["bash", script], env=env, **quiet).returncode
        if (jobs / job).read_text() == "RUNNING":
            (jobs / job).write_text("NODE_FAIL" if code else "COMPLETED")
            break
elif command == "sbatch":
    jobs.mkdir(exist_ok=True)
    last = re.search(r"--array=0-(\\d+)", Path(words[-1]).read_text())
    ids = [f"77_{{n}}" for n in range(int(last[1]) + 1)] if last else [str(100 + len([*jobs.iterdir()]))]
    for job in ids:
        (jobs / job).write_text("PENDING")
        script = jobs.parent / f"script-{{job}}"
        script.write_text(Path(words[-1]).read_text())
        subprocess.Popen([sys.executable, sys.argv[0], "node", job, str(script)], start_new_session=True, **quiet)
    print(f"Submitted batch job {{ids[0].partition('_')[0]}}")
elif command == "srun":
    start = next(place for place, word in enumerate(words) if "python" in word)
    os.execv(words[start], words[start:])
elif command == "sacct":
    print("JobID|State|NodeList")
    for job in jobs.iterdir():
        print(f"{{job.name}}|{{job.read_text()}}|node")
elif command == "scontrol":
    (jobs / words[1]).write_text("PENDING")
"""


@pytest.fixture
def grid(tmp_path):
    """Make cases of the functions above, given as (function, cols)."""
    (tmp_path / "user.py").write_text(USER)

    def build(*asked):
        fields = {
            "rows": 64,
            "form": "tanh",
            "pass": "fwd",
            "dtype": "float32",
            "tf32": False,
            "data": "normal",
            "layout": "contiguous",
        }
        measures = (Choice.from_record(BENCHMARK),)
        return [
            CaseRecord(
                Choice("gelu", fields | {"cols": cols}),
                Choice("file", {"path": f"{tmp_path}/user.py:{name}"}),
                measures,
                Settings("cpu", 0),
            )
            for name, cols in asked
        ]

    return build


@pytest.fixture
def left_behind(monkeypatch, tmp_path, survivors):
    """Return the processes of this test that do not end."""
    mark = f"TEST_OF_SLURM={tmp_path}"
    monkeypatch.setenv(*mark.split("="))
    return lambda: survivors(mark)


def launcher(**settings) -> Slurm:
    return schema.build(Slurm, {k: v for k, v in (SETTINGS | settings).items() if k != "name"}, "launcher")


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


def keys(found) -> list[str]:
    return sorted((each.case if isinstance(each, Row) else each).key for each in found)


def texts(events) -> str:
    return "\n".join(notice.text for notice in of(Notice, events))


@pytest.mark.long
def test_a_task_is_killed_and_another_one_goes_on(grid, tmp_path, left_behind):
    cases = grid(*[(function, cols) for cols in range(64, 68) for function in ("right", "other")])
    cases[5] = grid(("kills_once", 66))[0]
    before = set(sys.modules)
    events = list(launcher().run(cases, str(tmp_path / "worker.log")))
    assert keys(of(Row, events)) == keys(cases)
    assert {row.status for row in of(Row, events)} == {"ok"}
    assert [start.case for start in of(Started, events)].count(cases[5]) == 2
    assert of(PairedRounds, events)
    assert all(Fingerprints().of(row.case).items() <= row.fingerprint.items() for row in of(Row, events))
    environments = [ready.environment for ready in of(Ready, events)]
    assert all(each["hostname"] and each["job"] and each["torch"] for each in environments)
    assert len({each["job"] for each in environments}) == 3
    assert "task 000 (job " in texts(events)
    assert "has died: it ended as FINISHED; cases left for another: 1" in texts(events)
    parts = sorted((tmp_path / "parts").iterdir())
    assert [part.name for part in parts] == ["000", "001", "002"]
    assert sum(len(journal.load(part).rows) for part in parts) == 8
    assert "torch" not in set(sys.modules) - before
    assert not left_behind()


@pytest.mark.long
def test_an_array_with_a_preempted_task_and_one_that_dies(grid, tmp_path, left_behind, monkeypatch):
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for command in ("sbatch", "srun", "sacct", "scontrol"):
        (bin_ / command).write_text(SLURM.format(python=sys.executable))
        (bin_ / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}{os.pathsep}{os.environ['PATH']}")
    cases = grid(("right", 64), ("preempted_once", 64), ("kills_once", 65), ("right", 65), ("right", 66))
    slurm = launcher(cluster="slurm", partition="gpu", extra=["qos=high", "setup=true", "signal_delay_s=7"])
    events = list(slurm.run(cases, str(tmp_path / "worker.log")))
    assert keys(of(Row, events)) == keys(cases)
    assert {row.status for row in of(Row, events)} == {"ok"}
    assert "tasks submitted to slurm: 2 (77)" in texts(events)
    assert "task 001 (job 77_1) has died: it ended as NODE_FAIL; cases left for another: 2" in texts(events)
    assert {ready.environment["job"] for ready in of(Ready, events)} == {"77_0", "77_1", "102"}
    went_on = (tmp_path / "parts" / "000" / "rows.jsonl").read_text()
    assert went_on.count('"record":"session"') == 2, "the task that was preempted went on in its part"
    script = (tmp_path / "slurm" / "77_submission.sh").read_text()
    for line in ("--partition=gpu", "--qos=high", "--signal=USR2@7", "--time=60", "--array=0-1%2", "\ntrue\n"):
        assert line in script
    assert not left_behind()


class Tasks:
    """An executor of fake jobs: the test sets their states and writes their journals."""

    cluster = "slurm"

    def __init__(self, folder):
        self.folder, self.jobs, self.refuses = folder / "slurm", [], ""
        self._ids = count(1)

    def update_parameters(self, **_):
        """Ignore them."""

    def submit_array(self, shards):
        if self.refuses:
            raise ValueError(self.refuses)
        paths = SimpleNamespace(result_pickle=self.folder / "none")
        new = [SimpleNamespace(paths=paths, shard=shard, state="PENDING", done=lambda: False) for shard in shards]
        for job in new:
            job.job_id = f"9_{next(self._ids)}"
            job.cancel = lambda check, job=job: setattr(job, "state", "CANCELLED by the test")
        self.jobs += new
        return new

    def does(self, place, rows, *, begins=0, done=False):
        """Write the next ``rows`` of a job, then the start of ``begins`` more cases."""
        job = self.jobs[place]
        job.state = "RUNNING"
        part = Part(Path(job.shard.folder))
        with PartJournal(part.folder) as mine:
            left = [case for case in part.cases if case.key not in journal.load(part.folder).rows]
            for case in left[:rows]:
                mine.write(Started(case))
                mine.write(Row(case=case, status="ok", fingerprint=Fingerprints().of(case)))
            if done:
                mine.done()
        killed_with(part, *left[rows : rows + begins])


def killed_with(part, *cases):
    """Write the journal of a task that was killed with ``cases`` in flight."""
    with open(part.folder / journal.NAME, "a") as file:
        for record in ({"record": "session"}, *({"record": "start", "key": case.key} for case in cases)):
            file.write(json.dumps(record) + "\n")


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """Fake jobs. ``tasks.array()`` is the parent's side; it replaces a dead task at the first poll by default."""
    found = Tasks(tmp_path)
    found.array = lambda poll_s=0.0: Array(tmp_path, lambda: found, LOCAL, poll_s)
    earlier = lambda folder, job_id: next(job for job in found.jobs if job.job_id == job_id)  # noqa: E731
    monkeypatch.setattr("submitit.SlurmJob", earlier)
    return found


@pytest.fixture
def six(grid):
    return grid(*[(function, cols) for cols in range(64, 67) for function in ("right", "other")])


def test_a_task_that_slurm_queues_again_is_not_replaced(tasks, six):
    parent = tasks.array(poll_s=20.0)
    list(parent.submit([six]))
    tasks.does(0, 2, begins=1)
    assert keys(of(Row, parent.poll())) == keys(six[:2])
    for state in ("NODE_FAIL", "PENDING", "PREEMPTED", "REQUEUED", "RUNNING", "UNKNOWN", ""):
        tasks.jobs[0].state = state
        assert not list(parent.poll())
    tasks.does(0, 4, done=True)
    assert keys(of(Row, parent.poll())) == keys(six[2:])
    assert not parent.open
    assert len(tasks.jobs) == 1


def test_cases_of_a_dead_task_are_submitted_again_and_the_case_in_flight_is_lost_the_second_time(tasks, six):
    parent = tasks.array()
    list(parent.submit([six]))
    tasks.does(0, 2, begins=1)
    list(parent.poll())
    tasks.jobs[0].state = "OUT_OF_MEMORY"
    assert "task 000 (job 9_1) has died: it ended as OUT_OF_MEMORY; cases left for another: 4" in texts(parent.poll())
    assert Part(Path(tasks.jobs[1].shard.folder)).cases == [*six[3:], six[2]]
    tasks.does(1, 3, begins=1)
    list(parent.poll())
    tasks.jobs[1].state = "CANCELLED by 0"
    (row,) = of(Row, parent.poll())
    assert (row.case, row.status) == (six[2], "lost")
    assert row.reason == (
        "in flight when its process died, for the second time: task 001 (job 9_2), it ended as CANCELLED; "
        "to try again: resume.retry=[lost]"
    )
    assert not parent.open


def test_what_cannot_be_submitted(tasks, six):
    parent = tasks.array()
    tasks.refuses = "invalid partition\nand more"
    with pytest.raises(BadInput, match=r"^launcher=slurm: no task could be submitted: ValueError: invalid partition$"):
        list(parent.submit([six]))
    tasks.refuses = ""
    list(parent.submit([six]))
    tasks.jobs[0].state, tasks.refuses = "FAILED", "invalid account"
    rows = of(Row, parent.poll())
    assert keys(rows) == keys(six)
    assert "as FAILED, and then launcher=slurm: no task could be submitted: ValueError: invalid acc" in rows[0].reason


def test_tasks_that_die_in_a_row_without_a_row_are_not_replaced_for_ever(tasks, six):
    parent = tasks.array()
    list(parent.submit([six]))
    rows = []
    for job in range(3):
        tasks.jobs[job].state = "NODE_FAIL"
        rows += of(Row, parent.poll())
    assert len(tasks.jobs) == 3
    assert not parent.open
    assert keys(rows) == keys(six)
    assert rows[-1].reason.startswith("task 002 (job 9_3) ended as NODE_FAIL, and then 3 tasks in a row have died")


def test_ctrl_c_yields_the_rows_that_have_arrived_and_cancels_the_tasks(tasks, six, tmp_path, monkeypatch):
    monkeypatch.setattr("submitit.AutoExecutor", lambda *_, **__: tasks)
    run = launcher().run(six, str(tmp_path / "worker.log"))
    next(run)
    tasks.does(0, 1)
    tasks.does(1, 2)
    heard = [run.throw(KeyboardInterrupt)]
    with pytest.raises(KeyboardInterrupt):
        heard.extend(run)
    assert len(of(Row, heard)) == 3
    assert [job.state for job in tasks.jobs] == ["CANCELLED by the test"] * 2


def test_the_next_session_takes_over_rows_and_running_tasks(tasks, six, tmp_path):
    first, second = tasks.array(), tasks.array()
    list(first.submit([six[:2], six[2:4], six[4:]]))  # then the parent was killed
    tasks.does(0, 1)
    tasks.jobs[0].state = "FAILED"
    tasks.does(1, 1, begins=1)
    with Journal(tmp_path) as main:
        main.row(Row(case=six[4], status="ok"))  # it has a row and is in the grid, so it runs again
    events, left = exhaust(second.take_over(six))
    assert keys(of(Row, events)) == keys([six[0], six[2]])
    assert left == [six[1], six[4]]
    assert texts(events) == "from an earlier session: rows 2, tasks that go on 2"
    tasks.does(1, 1, done=True)
    tasks.does(2, 2, done=True)
    assert keys(of(Row, second.poll())) == keys([six[3], six[5]])
    assert not second.open
    assert not any(job.state.startswith("CANCELLED") for job in tasks.jobs)


def test_the_next_session_takes_over_paired_rounds_once_and_only_of_rows_that_count(tasks, six, tmp_path):
    list(tasks.array().submit([six[:2], six[2:4], six[4:]]))  # then the parent was killed
    of_task = []
    for job in tasks.jobs:
        part = Part(Path(job.shard.folder))
        keys = [case.key for case in part.cases]
        of_task.append(PairedRounds({key: [1.0] * 10 for key in keys}, dict.fromkeys(keys, "perf_counter")))
        with PartJournal(part.folder) as mine:
            for case in part.cases:
                row = Row(case=case, status="ok", fingerprint=Fingerprints().of(case), metrics={"started_at": case.key})
                mine.write(Started(case))
                mine.write(row)
            mine.write(of_task[-1])
            mine.done()
    with Journal(tmp_path) as main:  # it had both rows of the first task, and all that the second has done
        for case in six[:4]:
            main.row(Row(case=case, status="ok", metrics={"started_at": case.key}))
        main.rounds(of_task[1])
    events, left = exhaust(tasks.array().take_over(six[4:]))
    assert not left
    assert of(PairedRounds, events) == [of_task[0], of_task[2]]
    with Journal(tmp_path) as main:  # a case of the first task has run again since
        main.row(Row(case=six[0], status="ok", metrics={"started_at": "later"}))
    events, _ = exhaust(tasks.array().take_over(six[4:]))
    assert of(PairedRounds, events) == [of_task[2]]


def test_rows_and_tasks_of_other_sources_are_not_taken_over(tasks, six, tmp_path):
    list(tasks.array().submit([six]))
    tasks.does(0, 2)
    with Journal(tmp_path):
        pass
    (tmp_path / "user.py").write_text(USER.replace("import os", "import sys, os"))
    events, left = exhaust(tasks.array().take_over(six))
    assert not of(Row, events)
    assert left == six
    assert tasks.jobs[0].state == "CANCELLED by the test"


@pytest.mark.parametrize(
    "odd", ["fast", {"a": 1}, *(pytest.param(one, marks=pytest.mark.long) for one in (5, [1], None, True))]
)
def test_odd_values_in_the_parts_of_an_earlier_session_are_left_out(tasks, six, tmp_path, odd):
    list(tasks.array().submit([six[:2], six[2:]]))
    tasks.does(0, 1)
    with Journal(tmp_path):
        pass
    part = tmp_path / "parts" / "001"
    row = Row(case=six[2], status="ok", fingerprint=Fingerprints().of(six[2])).to_record()
    records = [{"record": "row", **row, name: odd} for name in ("key", "case", "status", "metrics", "fingerprint")]
    records += [{"record": "start", "key": odd}, {"record": "notice", "text": odd}, {"record": odd}]
    records += [{"record": "ready", "environment": odd, "gpu": odd}, {"record": "rounds", "batches_us": odd}]
    (part / journal.NAME).write_text("".join(json.dumps(record) + "\n" for record in records))
    (part / "cases.jsonl").write_text(json.dumps({**six[2].to_record(), "seed": odd}) + "\n")
    if odd != 5:
        (part / "job.json").write_text(json.dumps({"job": odd, "cluster": "slurm"}))
    events, left = exhaust(tasks.array().take_over(six))
    assert keys(of(Row, events)) == [six[0].key]
    assert left[-4:] == six[2:]


@pytest.mark.parametrize("job", ["9_1 --user=me", "--user=me", "1;2", "", "../1", 5, None, [1]])
def test_what_is_no_number_of_a_job_is_not_given_to_slurm(tmp_path, six, job):
    part = Part.create(tmp_path / "parts", six)
    for number in ("9_1", "77"):
        part.job = {"job": number, "cluster": "slurm"}
        assert part.job == {"job": number, "cluster": "slurm"}
    (part.folder / "job.json").write_text(json.dumps({"job": job, "cluster": "slurm", "folder": "/tmp"}))
    assert part.job == {}


def test_no_field_moves_the_files_that_submitit_unpickles_out_of_the_folder_of_the_run():
    with pytest.raises(BadInput, match=r"^launcher\.folder: no such field"):
        launcher(folder="/tmp/elsewhere")


def exhaust(steps):
    found = []
    while True:
        try:
            found.append(next(steps))
        except StopIteration as stop:
            return found, stop.value


def test_a_journal_that_appears_late_and_in_pieces(tmp_path, six):
    part = Part.create(tmp_path / "parts", six)
    assert part.cases == six
    assert part.new_records() == []
    file = part.folder / journal.NAME
    whole = b'\n{"record":"notice","text":"one"}\n\n{"record":"not'
    file.write_bytes(whole)
    assert part.new_records() == [{"record": "notice", "text": "one"}]
    file.write_bytes(whole + b'ice","text":"two"}\n' + b"\0" * 40)
    assert part.new_records() == [{"record": "notice", "text": "two"}]
    assert part.new_records() == []
    file.write_bytes(whole + b'ice","text":"two"}\n' + b'\n{"record":"notice","text":"3"}\n' + b"\0" * 8 + b'\n{"rec')
    assert part.new_records() == [{"record": "notice", "text": "3"}]


def test_a_task_that_is_queued_again_tries_a_suspect_last_and_gives_up_in_the_end(tmp_path, six, monkeypatch):
    part = Part.create(tmp_path / "parts", six[:4])
    asked = []
    monkeypatch.setattr("runner.execute.slurm_parts.serve", lambda local, cases, *_: asked.append([*cases]) or ())
    monkeypatch.setattr("submitit.JobEnvironment", lambda: SimpleNamespace(job_id="9"))
    with PartJournal(part.folder) as mine:
        mine.write(Row(case=six[0], status="ok"))
    killed_with(part, six[1])
    Shard(str(part.folder), LOCAL)()
    assert asked == [[six[2], six[3], six[1]]]
    killed_with(part, six[1])
    for _ in range(6):
        with PartJournal(part.folder) as mine:
            mine.write(Started(six[2]))  # then the task reached its time limit
    Shard(str(part.folder), LOCAL)()
    assert asked[1:] == [[six[3]]]
    reasons = [row.reason for row in journal.read_rows(part.folder) if row.status == "lost"]
    assert "in flight when its task died, for the second time" in reasons[0]
    assert "begun 6 times, but never finished within the time limit of a task (launcher.time_min)" in reasons[1]


def test_a_task_that_is_queued_again_on_another_model_of_gpu_measures_its_cases_again(
    tasks, tmp_path, six, monkeypatch
):
    """It compares the model alone: neither the very GPU nor the versions."""
    cases = [case.with_settings(device="auto") for case in six[:3]]
    parent = tasks.array()
    list(parent.submit([cases]))
    part = Part(Path(tasks.jobs[0].shard.folder))
    with PartJournal(part.folder) as mine:
        for case, device in zip(cases, ("A100", "H200"), strict=False):
            mine.write(Started(case))
            mine.write(Row(case=case, status="ok", device=device, fingerprint={"torch": "1.0"}))
    asked = []
    monkeypatch.setattr("runner.execute.slurm_parts.serve", lambda local, cases, *_: asked.append([*cases]) or ())
    monkeypatch.setattr("submitit.JobEnvironment", lambda: SimpleNamespace(job_id="9"))
    monkeypatch.setattr("runner.device.gpus.visible", lambda: [Gpu(0, "GPU-1", "H200", 0, 0)])
    Shard(str(part.folder), replace(LOCAL, gpus="all"))()
    assert asked == [[cases[0], cases[2]]]
    assert keys(of(Row, parent.drain())) == keys(cases[:2])
    with PartJournal(part.folder) as mine:
        mine.write(Started(cases[0]))
        mine.write(Row(case=cases[0], status="ok", device="H200"))
    (row,) = of(Row, parent.drain())
    assert (row.case, row.device) == (cases[0], "H200")


def test_an_error_of_a_task_becomes_a_notice(tmp_path, six, monkeypatch):
    def serve(*_):
        raise RuntimeError("no worker could be started\nat all")

    part = Part.create(tmp_path / "parts", six)
    monkeypatch.setattr("runner.execute.slurm_parts.serve", serve)
    monkeypatch.setattr("submitit.JobEnvironment", lambda: SimpleNamespace(job_id="9"))
    with pytest.raises(RuntimeError):
        Shard(str(part.folder), LOCAL)()
    (notice,) = [record["text"] for record in part.new_records() if record["record"] == "notice"]
    assert notice.endswith(": RuntimeError: no worker could be started")


@pytest.mark.parametrize("text", [None, b"\0" * 100, b'{"workload": {'])  # NFS may show zeros, or a part
def test_a_task_that_cannot_read_its_cases_has_not_done_them(tmp_path, six, text):
    part = Part.create(tmp_path / "parts", six)
    cases = part.folder / "cases.jsonl"
    cases.unlink() if text is None else cases.write_bytes(text)
    with pytest.raises(OSError, match=r"cases\.jsonl cannot be read"):
        Shard(str(part.folder), LOCAL)()
    assert [record["record"] for record in part.new_records()] == ["session", "notice"]


def test_sizes_are_dealt_out_whole(six):
    for tasks, shares in ((2, [[*six[:2], *six[4:]], six[2:4]]), (9, [six[:2], six[2:4], six[4:]])):
        ledger = Ledger()
        ledger.add(six)
        assert ledger.deal(tasks) == shares
        assert not ledger.left


@pytest.mark.parametrize("pair", ["qos", "=high", "signal_delay_s=soon"])
def test_extra_is_name_and_value(pair):
    with pytest.raises(BadInput, match=r"^launcher\.extra: .* is not name=value"):
        launcher(extra=[pair])


@pytest.mark.parametrize("option", ["nodes", "ntasks-per-node"])
def test_more_than_one_node_is_refused(option):
    with pytest.raises(BadInput, match=rf"^launcher\.extra: {option} is not allowed: a task, .* runs on one node$"):
        launcher(extra=[f"{option}=2"])


def test_a_task_asks_for_a_gpu_for_each_rank_on_one_node(tmp_path, monkeypatch):
    for tool in ("srun", "sbatch", "scancel", "sacct"):
        (tmp_path / tool).write_text(
            f'#!/bin/sh\n[ -f "$1" ] && cp "$1" {tmp_path}/asked\necho Submitted batch job 7\n'
        )
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    case = CaseRecord(Choice("all_reduce", {"ranks": 4}), Choice("torch", {}), (), Settings("cuda", 0))
    events = launcher(cluster="slurm", gpus_per_task=1).run([case], str(tmp_path / "run" / "worker.log"))
    next(events)
    events.close()
    assert {"#SBATCH --gpus-per-node=4", "#SBATCH --nodes=1"} <= {*(tmp_path / "asked").read_text().splitlines()}


def test_without_slurm_or_submitit_nothing_is_started(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BadInput, match=r"^launcher\.cluster: no srun and sbatch here"):
        launcher(cluster="slurm")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"needs the package submitit: pip install -e '\.\[slurm\]' in the checkout$"):
        launcher()


def test_states_for_which_submitit_would_wait_for_ever_are_ends():
    assert not {"PREEMPTED", "NODE_FAIL", "TIMEOUT", "CANCELLED", "FAILED", "COMPLETED"} & slurm.GOING_ON
