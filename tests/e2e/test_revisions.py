"""Two git revisions in one run, through the real command line: sampled in turn, named and judged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNEL = """\
import os, pathlib, torch
from helper import TIMES
open_files = [path for path in pathlib.Path("/proc/self/fdinfo").iterdir() if path.exists()]
watched = f" ino:{os.stat(os.path.dirname(__file__)).st_ino:x} "  # opening a watched file takes 2 us longer
assert any(watched in path.read_text() for path in open_files), "the files of both revisions must cost as much"
def f(x, form):
    for _ in range(TIMES):
        x = x + 0
    return torch.nn.functional.gelu(x, approximate="none" if form == "erf" else form)
"""
SMALL = ["workload=gelu", "workload.rows=64", "workload.cols=64", "workload.dtype=float32", "device=cpu"]


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.check_output(["git", "-C", str(folder), *who, *words], text=True).strip()


@pytest.fixture
def repository(tmp_path):
    """The first commit adds 60 times and is correct, the second is wrong, the working tree is fast and correct."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for kernel, times in ((KERNEL, 60), (KERNEL.replace("return ", "return 2 * "), 1), (KERNEL, 0)):
        (folder / "k.py").write_text(kernel)
        (folder / "helper.py").write_text(f"TIMES = {times}\n")
        if times:
            git(folder, "add", "-A")
            git(folder, "commit", "-qm", "x")
    return folder


def test_two_revisions_of_a_users_file_are_compared_in_one_run(run, repository, tmp_path):
    file = [*SMALL, "impl=file", f"impl.path={repository}/k.py:f"]
    cache = {"XDG_CACHE_HOME": str(tmp_path / ".cache")}  # a hidden folder is not watched as a part of another
    result = run(*file, "impl.rev=HEAD~1,worktree,HEAD", "baseline=file@HEAD~1", "-m", env=cache)
    assert result.code == 1  # HEAD is wrong
    rows = {row["case"]["impl"].get("rev"): row for row in result.rows()}
    commits = {name: git(repository, "rev-parse", name) for name in ("HEAD~1", "HEAD")}
    assert rows.keys() == {None, *(f"{name}@{commit}" for name, commit in commits.items())}
    old, wrong, new = rows[f"HEAD~1@{commits['HEAD~1']}"], rows[f"HEAD@{commits['HEAD']}"], rows[None]
    assert (old["status"], wrong["status"], new["status"]) == ("ok", "wrong", "ok")
    assert (old["metrics"]["commit"], old["metrics"]["dirty"]) == (commits["HEAD~1"], False)
    assert (new["metrics"]["commit"], new["metrics"]["dirty"]) == (commits["HEAD"], True)
    (rounds,) = result.records("rounds")  # paired: both were sampled in turn
    assert {old["key"], new["key"]} <= rounds["batches_us"].keys()
    assert all(f"file@{name}" in result.out for name in ("HEAD~1", "HEAD", "worktree"))
    fast = next(line for line in result.out.splitlines() if "★ file@worktree" in line)
    assert " faster " in fast

    git(repository, "commit", "-aqm", "later")  # main moves; the run still means the commits that it began with
    resumed = run(f"resume={result.folder}", env=cache)
    assert "3 of 3 cases kept, 0 to run" in resumed.out


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout")
def test_kernels_of_the_last_commit_run_beside_those_of_the_working_tree(run, tmp_path):
    words = ["impl=triton", "impl.rev=HEAD,worktree", "debug=interpret", "-m"]
    result = run(*SMALL, *words, env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert result.code == 0, result.err
    assert [row["metrics"]["correct"] for row in result.rows()] == [True, True]
    assert "triton@HEAD" in result.out
    assert "triton@worktree" in result.out


def test_a_revision_that_does_not_exist_is_refused_before_anything_runs(run, repository):
    result = run(*SMALL, "impl=file", f"impl.path={repository}/k.py:f", "impl.rev=HEAD~7")
    assert (result.code, result.folder) == (2, None)
    assert result.err.startswith("runner: impl.rev=HEAD~7: no such revision in")
    assert result.err.count("\n") == 1


OWN = """import torch
def inputs(n=64): return torch.full((n,), {value}.0) + torch.arange(n)
def reference(x): return {value} * x
def doubled(x): return {value} * x
"""


def test_functions_of_a_workloads_file_are_the_revisions_and_its_reference_the_working_trees(run, tmp_path):
    git(tmp_path, "init", "-q", "-b", "main")
    for value in (2, 3):
        (tmp_path / "scaled.py").write_text(OWN.replace("{value}", str(value)))
        if value == 2:
            git(tmp_path, "add", "scaled.py")
            git(tmp_path, "commit", "-qm", "x")
    quick = ["device=cpu", "quick=true", "measure.benchmark.max_s=0.02", "measure.benchmark.paired_rounds=0"]
    cache = {"XDG_CACHE_HOME": str(tmp_path / ".cache")}  # a hidden folder is not watched as a part of another
    words = ["workload=scaled.py", "impl=reference,doubled", "impl.rev=main,worktree", "-m", *quick]
    result = run(*words, env=cache)
    statuses = {(row["case"]["impl"]["name"], "rev" in row["case"]["impl"]): row["status"] for row in result.rows()}
    # The old functions double what the new reference triples, on the new inputs.
    assert statuses == {(name, old): "wrong" if old else "ok" for name in ("reference", "doubled") for old in (1, 0)}
    wrong = next(row for row in result.rows() if row["status"] == "wrong")
    assert "got " in wrong["reason"]

    (tmp_path / "scaled.py").write_text(
        OWN.replace("{value}", "3").replace("def doubled(x): return", "def doubled(x): return 1 *")
    )
    resumed = run(*words, "resume=last", "resume.retry=[]", env=cache)
    assert "3 of 4 cases kept, 1 to run" in resumed.out
