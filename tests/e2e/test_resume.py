"""A run is resumed whatever ended it: through the real command line, on the CPU."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pandas
import pytest
import yaml

from runner import cli
from runner.api import frame
from runner.store import journal

QUICK = ["measure.benchmark.samples=20", "measure.benchmark.max_s=0.02", "measure.benchmark.warmup_s=0"]
TINY = ["workload=gelu", "workload.rows=8", *QUICK]
KILLS = int(os.environ.get("RESUME_TEST_KILLS", "3"))  # 20 in the bar; each costs 2 s
MINE = """
import torch
def gelu(x, form): return torch.nn.functional.gelu(x, approximate=form)
"""


def start(command, *arguments, **more):
    words, options = command(*arguments)
    options["env"] |= more.pop("env", {})
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options, **more)


def folder_of(tmp_path: Path) -> Path:
    """Return the folder of the only run. One without a journal, of a run killed early, does not count."""
    (path,) = tmp_path.glob(f"outputs/*/*/{journal.NAME}")
    return path.parent


@pytest.mark.long
def test_random_kills_and_resumes_lose_no_row_and_run_no_case_twice(command, run, tmp_path, survivors):
    draw, mark = random.Random(os.getpid()), f"RESUME_TEST={os.getpid()}-{time.monotonic_ns()}"
    env = dict([mark.split("=")])
    grid = [*TINY, "workload.cols=range(1,61)", "impl=naive,torch", "-m"]
    words, kept = grid, Counter()
    for _ in range(KILLS):
        process = start(command, *words, env=env, start_new_session=True)
        try:
            process.communicate(timeout=draw.uniform(0.1, 3.0))
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        assert not survivors(mark)
        if not list(tmp_path.glob(f"outputs/*/*/{journal.NAME}")):
            continue
        before, kept = kept, Counter(r["key"] for r in records(folder_of(tmp_path), "row"))
        assert before <= kept  # what was on the disk has stayed there
        words = ["resume=last", "resume.retry=[lost]"]  # a case that was twice in flight is tried once more
    result = run(*words, env=env)
    assert result.code == 0, result.err
    keys = Counter(record["key"] for record in result.rows())
    assert len(keys) == 120
    assert set(keys.values()) == {1}
    assert {record["status"] for record in result.rows()} == {"ok"}
    assert len(frame.load(result.folder)) == len(pandas.read_csv(result.folder / "rows.csv")) == 120
    assert "120 cases: 120 ok" in result.out
    environment = json.loads((result.folder / "environment.json").read_text())
    assert "workload=gelu" in [*environment.get("earlier_sessions", []), environment][0]["command"]


def records(folder: Path, kind: str) -> list[dict]:
    found = []
    for line in (folder / journal.NAME).read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record["record"] == kind:
            found.append(record)
    return found


def test_cases_of_a_changed_file_run_again(run, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    words = [*TINY, "workload.cols=8,16", "impl=naive,file", "impl.path=mine.py:gelu", "-m"]
    first = run(*words)
    assert first.code == 0, first.err
    (tmp_path / "mine.py").write_text(MINE.replace("def", "# a comment\n\ndef"))
    same = run("resume=last")
    assert "resume: outputs" in same.out.replace(str(tmp_path) + "/", "")
    assert "4 of 4 cases kept, 0 to run" in same.out
    assert len(same.records("row")) == len(same.records("start")) == 4
    (tmp_path / "mine.py").write_text(MINE.replace("return ", "return 1 * "))
    changed = run("resume=last")
    assert changed.code == 0, changed.err
    assert "2 of 4 cases kept, 2 to run\n  2 to run: mine.py has changed\n" in changed.out
    again = [record["case"]["impl"]["name"] for record in changed.records("row")[4:]]
    assert again == ["file", "file"]
    assert changed.folder == first.folder
    table = frame.load(changed.folder)
    assert list(table["attempt"]) == [1, 2, 1, 2]
    assert not table["paired"].any()  # the old comparisons were with the old file


def test_a_resumed_grid_may_grow(run, tmp_path):
    run(*TINY, "workload.cols=8,16", "-m")
    result = run(*TINY, "workload.cols=16,32", "-m", "resume=last")
    assert result.code == 0, result.err
    assert "1 of 2 cases kept, 1 to run\n  1 to run: never done\n  1 more in the folder, not of this grid" in result.out
    assert "2 cases: 2 ok" in result.out
    assert [row["case"]["workload"]["cols"] for row in result.rows()] == [8, 16, 32]
    documents = list(yaml.safe_load_all((result.folder / "configs.yaml").read_text()))
    assert [document["workload"]["cols"] for document in documents[1:]] == [8, 16, 32]
    assert len(pandas.read_csv(result.folder / "rows.csv")) == 3
    environment = json.loads((result.folder / "environment.json").read_text())
    assert "workload.cols=16,32" in environment["command"]
    assert "workload.cols=8,16" in environment["earlier_sessions"][0]["command"]
    assert environment["worker"]["torch"]
    assert "3 of 3 cases kept" in run("resume=last").out


def test_cases_with_the_statuses_in_retry_run_again(run, tmp_path):
    (tmp_path / "mine.py").write_text("def bad(x): raise ValueError('no')\ndef wrong(x): return x\n")
    first = run(*TINY, "workload.cols=8", "impl=torch,file", "impl.path=mine.py:bad,mine.py:wrong", "-m")
    assert [row["status"] for row in first.rows()] == ["ok", "error", "wrong"]
    none = run("resume=last", "resume.retry=oom,crashed")
    assert "3 of 3 cases kept" in none.out
    assert none.code == 1  # a kept failure is still one
    failed = run("resume=last")
    assert "  1 to run: its status was error" in failed.out
    wrong = run("resume=last", "resume.retry=[wrong]")
    assert "2 of 3 cases kept, 1 to run\n  1 to run: its status was wrong" in wrong.out
    assert [row["status"] for row in wrong.rows()] == ["ok", "error", "wrong", "error", "wrong"]


def test_the_remaining_cases_run_after_an_interrupt(command, run, tmp_path, folder_with_rows):
    process = start(command, *TINY, "workload.cols=range(1,41)", "-m")
    folder_with_rows(3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    result = run("resume=last")
    assert result.code == 0, result.err
    assert set(Counter(row["key"] for row in result.rows()).values()) == {1}
    assert len(result.rows()) == 40
    assert "in flight" not in result.out  # it was stopped, and did not die


ENDS = """
import os, signal, torch
def gelu(x, form):
    status = open(f"/proc/{os.getppid()}/status").read()  # of what this process was forked from
    os.kill(int(status.partition("PPid:")[2].split()[0]), signal.SIG%s)
    signal.pause()
"""


@pytest.mark.long
@pytest.mark.parametrize(("name", "lost"), [("KILL", True), ("TERM", True), ("INT", False)])
def test_a_case_that_ends_the_runner_twice_is_lost_unless_by_ctrl_c(run, tmp_path, cold, name, lost):
    (tmp_path / "mine.py").write_text(ENDS % name)
    words = [*TINY, "workload.cols=8", "impl=file", "impl.path=mine.py:gelu"]
    number = getattr(signal, f"SIG{name}")
    codes = [run(*more).code for more in (words, ["resume=last"])]
    assert codes == ([-number] * 2 if name == "KILL" else [128 + number] * 2)
    third = run("resume=last")
    assert [row["status"] for row in third.rows()] == ["lost"] * lost
    assert third.code == (1 if lost else 128 + number)


def test_two_cannot_write_one_run(command, run, tmp_path, folder_with_rows):
    process = start(command, *TINY, "workload.cols=range(1,400)", "-m")
    folder = folder_with_rows(1)
    second = run(f"resume={folder}")
    assert second.code == 2
    assert f"is being written by process {process.pid} on " in second.err
    assert second.err.count("\n") == 1
    plan = planned(command, f"resume={folder}")
    assert f"is being written by process {process.pid} on " in plan
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


def planned(command, *arguments: str) -> str:
    words, options = command("plan")
    words = [*words[:3], "plan", *words[3:-1], *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True, **options)
    return done.stdout


def printed(err):
    return [json.loads(line) for line in err.splitlines() if line.startswith('{"record":"row"')]


def removed(folder):
    shutil.rmtree(folder)
    return "its folder has been removed or renamed"


def renamed(folder):
    folder.rename(folder.with_name("mine"))
    return "its folder has been removed or renamed"


def truncated(folder):
    os.truncate(folder / journal.NAME, 0)
    return "its rows.jsonl has been truncated"


@pytest.mark.parametrize("how", [removed, *(pytest.param(one, marks=pytest.mark.long) for one in (renamed, truncated))])
def test_a_run_whose_records_are_lost_stops_and_prints_its_rows(command, tmp_path, folder_with_rows, how):
    process = start(command, *TINY, "workload.cols=range(1,61)", "-m")
    folder = folder_with_rows(5)
    count = len(records(folder, "row"))
    why = how(folder)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in err
    assert f"cannot go on: {why}. No further case is started" in err
    saved = printed(err)
    assert f"{len(saved)} rows could not be saved; they are printed above as JSON lines" in err
    assert len({row["key"] for row in saved}) == len(saved) >= count
    assert f"60 cases: {len(saved)} ok" in out


def test_a_full_disk_costs_no_row(command, run, tmp_path):
    process = start(command, *TINY, "workload.cols=range(1,31)", "-m")
    resource.prlimit(
        process.pid, resource.RLIMIT_FSIZE, (40_000, 40_000)
    )  # of a file, which is as good as a small disk
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in err
    assert "No further case is started" in err
    kept = journal.read_rows(folder_of(tmp_path))
    assert 0 <= len(printed(err)) <= 1  # or there was no room for the start of a case, and so no row without a place
    assert f"30 cases: {len(kept) + len(printed(err))} ok" in out
    done = run("resume=last")  # there is room again; one case at most is done once more
    assert done.code == 0, done.err
    assert f"{len(kept)} of 30 cases kept" in done.out
    assert len({row["key"] for row in records(done.folder, "row")}) == 30


def test_plan_says_what_a_run_would_do_and_writes_nothing(command, run, tmp_path):
    grid = [*TINY, "workload.cols=8,16", "impl=naive,torch", "-m"]
    out = planned(command, *grid)
    assert "4 cases, 4 to run; time about " in out
    assert " s, a guess (from operations and bytes; no earlier run). Nothing has been started." in out
    assert out.count("~") == 4
    assert not (tmp_path / "outputs").exists()
    result = run(*grid)
    keys = [row["key"] for row in result.rows()]
    assert [line.split()[0] for line in out.splitlines()[:4]] == keys
    out = planned(command, *TINY, "workload.cols=8,16,32", "impl=naive,torch", "-m", "resume=last")
    assert out.count(" kept") == 4 + 1
    assert out.count("never done") == 2 + 1
    assert "(from the same workload and implementation; 4 rows of 1 earlier run)" in out
    lines = json.loads(planned(command, "--format", "json", "resume=last"))
    assert [line["key"] for line in lines] == keys
    assert {line["state"] for line in lines} == {"kept"}
    assert lines[0]["workload"]["cols"] == 8
    assert lines[0]["impl"] == {"name": "naive"}
    assert len(list((tmp_path / "outputs").glob("*/*"))) == 1


def test_plan_refuses_what_a_run_would_refuse(capsys):
    assert cli.main(["plan", "launcher.start_limit_s=0"]) == 2
    assert "launcher.start_limit_s: 0.0 is not allowed; give a number above 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["resume=nowhere"], "resume=nowhere: there is no such folder"),
        (["resume=last"], "resume=last: there is no run under "),
        ([*TINY, "resume=last"], "resume=last: there is no run called gelu under "),
        (["resume=.", *TINY], "resume=.: it holds no rows.jsonl"),
    ],
)
def test_a_mistake_is_one_line_and_starts_nothing(run, arguments, line):
    result = run(*arguments)
    assert result.code == 2
    assert line in result.err
    assert result.err.count("\n") == 1
    assert result.folder is None


def test_closing_stdout_ends_the_run_and_costs_no_row(command, run, tmp_path, folder_with_rows):
    process = start(command, *TINY, "workload.cols=range(1,41)", "-m")
    folder_with_rows(3)
    process.stdout.close()
    assert "any more" not in process.stderr.read()
    assert process.wait(60) in (1, 128 + signal.SIGPIPE)  # 1 is rich's way
    process.stderr.close()
    result = run("resume=last")
    assert result.code == 0, result.err
    assert set(Counter(row["key"] for row in result.rows()).values()) == {1}
