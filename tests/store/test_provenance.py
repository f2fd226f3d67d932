"""The commit of a row: that of the repository of the file which it ran."""

from __future__ import annotations

import subprocess

import pytest

from runner.records.case import Choice
from runner.records.plan import Plan
from runner.records.row import Row
from runner.store import journal, run_folder
from runner.store.provenance import Repositories, commits
from runner.store.session import Session

OPTIONS = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")


def git(folder, *words):
    done = subprocess.run(["git", "-C", folder, *OPTIONS, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def mine(tmp_path):
    """A user's repository with one commit: ``k.py``, which imports ``helper.py``, and ``notes.txt``."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in {"k.py": "from helper import f\n", "helper.py": "def f(x): return x\n", "notes.txt": "a"}.items():
        (folder / name).write_text(text)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def of(*files):
    return Repositories().provenance(list(files))


def test_a_file_has_the_commit_of_its_repository(mine):
    assert of(mine / "k.py") == {"repository": str(mine), "commit": git(mine, "rev-parse", "HEAD"), "dirty": False}
    git(mine, "remote", "add", "origin", "https://someone:secret@example.org/group/mine.git")
    assert of(mine / "k.py")["repository"] == "https://example.org/group/mine.git"


def test_in_a_hook_of_another_repository_a_file_has_the_commit_of_its_own(mine, tmp_path, monkeypatch):
    git(tmp_path, "init", "-q", "other")
    expected = of(mine / "k.py")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert of(mine / "k.py") == expected


def test_only_changes_of_the_files_that_are_run_make_it_dirty(mine, tmp_path):
    (mine / "notes.txt").write_text("b")
    (mine / "outputs").mkdir()
    (mine / "outputs" / "rows.csv").write_text("")
    (tmp_path / "elsewhere.py").write_text("")
    files = [mine / "k.py", mine / "helper.py", tmp_path / "elsewhere.py"]
    assert of(*files)["dirty"] is False
    (mine / "helper.py").write_text("def f(x): return x + 1\n")
    assert of(*files)["dirty"] is True
    git(mine, "add", "helper.py")  # for the next commit
    assert of(*files)["dirty"] is True
    assert of(files[0])["dirty"] is False


def test_a_file_that_git_does_not_know_is_dirty_and_one_that_it_ignores_is_in_no_repository(mine):
    for name in ("new.py", "site.py"):
        (mine / name).write_text("")
    (mine / ".gitignore").write_text("site.py\n")
    assert of(mine / "new.py")["dirty"] is True
    assert of(mine / "site.py") == {}


def test_without_a_repository_a_commit_or_git_nothing_is_claimed(mine, tmp_path, monkeypatch):
    (tmp_path / "k.py").write_text("")
    assert of(tmp_path / "k.py") == of(mine / "missing.py") == {}
    git(tmp_path, "init", "-q", "empty")
    (tmp_path / "empty" / "k.py").write_text("")
    assert of(tmp_path / "empty" / "k.py") == {"repository": str(tmp_path / "empty"), "commit": "", "dirty": True}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert of(mine / "k.py") == {}


def test_a_row_has_the_commit_of_the_users_file_and_that_of_a_built_in_is_this_projects(case, mine, tmp_path):

    cases = case("file", impl_fields={"path": f"{mine}/k.py:f"}), case("torch")
    local = Choice("local", {})
    plan = Plan(cases=cases, name="x", baseline=None, output_dir=str(tmp_path / "o"), launcher=local, log=())
    with Session(plan, ["workload=x"], lambda: None) as session:
        session.read_sources()
        (mine / "helper.py").write_text("# edited while it runs: the fingerprint says so\n")
        for one in cases:
            session.done(Row(case=one, status="ok", metrics={"wall_us": 1.0}))
    own, built_in = (row.metrics for row in journal.read_rows(session.folder))
    assert (own["repository"], own["commit"], own["dirty"]) == (str(mine), git(mine, "rev-parse", "HEAD"), False)
    assert built_in.get("repository") != str(mine)


def test_commits_are_short_and_their_repositories_are_named_if_there_are_several():
    one, other = ({"repository": f"https://example.org/{name}.git", "commit": name * 10} for name in ("abcd", "ef01"))
    assert commits([]) == commits([{}, {"commit": "", "dirty": True}, {"commit": None}]) == ""
    assert commits([one, one | {"dirty": False}]) == "abcdabcd"
    assert commits([one, one | {"dirty": True}, one | {"commit": "0" * 40}]) == "abcdabcd*, 00000000"
    assert commits([one, other | {"dirty": True}]) == "abcd abcdabcd, ef01 ef01ef01*"


def test_changed_tracked_files_make_the_environment_dirty_and_new_ones_do_not(mine, monkeypatch):
    monkeypatch.setattr(run_folder, "ROOT", mine)
    (mine / "new.py").write_text("1\n")
    assert run_folder.environment([])["dirty"] is False
    (mine / "notes.txt").write_text("b")
    assert run_folder.environment([])["dirty"] is True
