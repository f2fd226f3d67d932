"""Git revisions of a user's file and of ``kernels/``: names, files, helpers, two of them in one process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runner import config, implementations
from runner.device.processes import ROOT
from runner.implementations import KERNELS, loader, revisions
from runner.kernels.unsupported import Unsupported
from runner.measure.inspect.programs import loaded_kernels
from runner.records.bad_input import BadInput
from runner.records.case import Choice
from runner.records.labels import Labels
from runner.store.fingerprint import Fingerprints, difference
from runner.store.provenance import Repositories

KERNEL = "from helper import factor\ndef f(x): return factor() * x\n"


class Repository:
    """A git repository of a user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str) -> str:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.check_output(["git", "-C", str(self.folder), *who, *words], text=True).strip()

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def commit(self, files: dict[str, str]) -> str:
        self.write(files)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "x")
        return self.git("rev-parse", "HEAD")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache" / "kernel-runner" / "revisions"


@pytest.fixture
def repository(tmp_path):
    """Three versions: the factor is 2, then 3, both committed, and 5 in the working tree."""
    made = Repository(tmp_path / "repo")
    made.commit({"k.py": KERNEL, "helper.py": "def factor(): return 2\n"})
    made.git("tag", "v1.0")
    made.git("branch", "feature/fast-2")
    made.commit({"helper.py": "def factor(): return 3\n"})
    made.write({"helper.py": "def factor(): return 5\n"})
    return made


def impls(repository: Repository, *words: str, path: str = "k.py:f") -> list[Choice]:
    """The implementations of the plan that the command line makes."""
    file = f"impl.path={repository.folder}/{path}"
    line = ["workload=gelu", "workload.rows=2", "workload.cols=4", "device=cpu", "impl=file", file, *words, "-m"]
    plan = config.plan(line)
    return list({case.impl.text: case.impl for case in plan.cases}.values())


def factor(choice: Choice) -> float:
    return implementations.build(choice).load("gelu")(1)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("HEAD~1", 2),
        ("HEAD^", 2),
        ("HEAD", 3),
        ("main", 3),
        ("v1.0", 2),
        ("feature/fast-2", 2),
        ("main@{0}", 3),
        ("'HEAD~1'", 2),
        ("worktree", 5),
        ("null", 5),
    ],
)
def test_a_revision_needs_no_quotes(repository, typed, expected):
    (choice,) = impls(repository, f"impl.rev={typed}")
    assert factor(choice) == expected


def test_a_commit_of_digits_alone_or_like_a_float_is_no_number(repository):
    for place in range(300):
        commit = repository.commit({"n": str(place)})
        if commit[:5].isdecimal():
            break
    (choice,) = impls(repository, f"impl.rev={commit[:5]}")
    assert choice.commit == commit


def test_revisions_and_the_working_tree_live_in_one_process(repository):
    two = impls(repository, "impl.rev=HEAD~1,HEAD,worktree")
    functions = [implementations.build(choice).load("gelu") for choice in two]
    assert [function(1) for function in functions + functions[::-1]] == [2, 3, 5, 5, 3, 2]
    assert [Labels(two).label(choice) for choice in two] == ["file@HEAD~1", "file@HEAD", "file@worktree"]


def test_a_submodule_is_that_of_the_revision(tmp_path):
    library, user = Repository(tmp_path / "library"), Repository(tmp_path / "user")
    library.commit({"in_sub.py": "def factor(): return 2\n"})
    user.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library.folder), "sub")
    kernel = "import os, sys\nsys.path.insert(0, os.path.dirname(__file__) + '/sub')\nfrom in_sub import factor\n"
    user.commit({"k.py": kernel + "def f(x): return factor() * x\n"})
    user.write({"sub/in_sub.py": "def factor(): return 3\n"})
    assert [factor(choice) for choice in impls(user, "impl.rev=HEAD,worktree")] == [2, 3]


def test_a_link_leads_where_it_leads_in_the_revision(tmp_path):
    user = Repository(tmp_path / "user")
    for name, number in (("old", 2), ("new", 3)):
        user.write({f"{name}/k.py": f"def f(x): return {number} * x\n"})
    (user.folder / "cur").symlink_to("old")
    commit = user.commit({})
    (user.folder / "cur").unlink()
    (user.folder / "cur").symlink_to("new")
    assert [factor(choice) for choice in impls(user, "impl.rev=HEAD,worktree", path="cur/k.py:f")] == [2, 3]
    snapshot = revisions.snapshot(f"HEAD@{commit}", user.folder)
    assert [snapshot.differs(f"{user.folder}/{name}/k.py") for name in ("cur", "old", "new")] == [True, False, False]


def test_a_large_file_is_there_in_a_revision(tmp_path):
    user = Repository(tmp_path / "user")
    read = "from pathlib import Path\ndef f(x): return len((Path(__file__).parent / 'data').read_bytes()) * x\n"
    user.commit({"k.py": read, "data": "x" * 5_000_000})
    (choice,) = impls(user, "impl.rev=HEAD")
    assert factor(choice) == 5_000_000


@pytest.mark.parametrize("folder", ["", "kernels/"])
def test_a_package_of_the_users_that_is_called_runner_is_of_the_revision_too(tmp_path, folder, monkeypatch):
    repository = Repository(tmp_path / "project")
    monkeypatch.chdir(repository.folder)
    monkeypatch.syspath_prepend(str(repository.folder))
    kernel = "from runner.deep import factor\ndef f(x): return factor() * x\n"
    files = {f"{folder}k.py": kernel, "runner/__init__.py": "", "runner/deep.py": "def factor(): return 2\n"}
    commit = repository.commit(files)
    repository.write({"runner/deep.py": "def factor(): return 3\n"})
    words = ["workload=gelu", "workload.cols=4", "device=cpu", "impl=file", f"impl.path={folder}k.py:f"]
    monkeypatch.setattr(sys, "argv", ["runner"])
    plan = config.plan([*words, f"impl.rev={commit},worktree", "-m"])
    assert [factor(case.impl) for case in plan.cases] == [2, 3]


def test_a_revision_is_resolved_when_the_command_line_is_read(repository):
    (choice,) = impls(repository, "impl.rev=main")
    assert choice.fields["rev"] == f"main@{repository.git('rev-parse', 'HEAD')}"
    repository.commit({"helper.py": "def factor(): return 7\n"})
    assert factor(choice) == 3
    assert implementations.checked(choice) == choice


def test_the_axes_of_an_experiment_may_name_revisions(repository, tmp_path):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    text = "# @package _global_\naxes:\n  impl.rev: [HEAD~1, worktree]\n"
    (tmp_path / "mine" / "experiment" / "mine.yaml").write_text(text)
    found = impls(repository, f"--config-dir={tmp_path}/mine", "+experiment=mine")
    assert [choice.revision for choice in found] == ["HEAD~1", ""]


def test_several_revisions_need_a_sweep(repository):
    words = ["workload=gelu", "workload.cols=4", "device=cpu", "impl=file", f"impl.path={repository.folder}/k.py:f"]
    with pytest.raises(BadInput) as raised:
        config.plan([*words, "impl.rev=HEAD~1,main"])
    assert str(raised.value) == "impl.rev=HEAD~1,main: several values make a sweep; add -m"


def test_a_file_with_a_name_of_its_own_has_revisions(repository, tmp_path):
    (tmp_path / "mine" / "impl").mkdir(parents=True)
    (tmp_path / "mine" / "impl" / "quick.yaml").write_text(f"name: quick\npath: {repository.folder}/k.py:f\n")
    words = ["workload=gelu", "workload.rows=2", "workload.cols=4", "device=cpu", f"--config-dir={tmp_path}/mine"]
    plan = config.plan([*words, "impl=torch,quick", "impl.rev=HEAD~1,worktree", "-m"])
    labels = Labels(case.impl for case in plan.cases)
    assert [labels.label(case.impl) for case in plan.cases] == ["torch", "quick@HEAD~1", "quick@worktree"]
    assert [factor(case.impl) for case in plan.cases[1:]] == [2, 5]


def test_inside_a_git_hook_the_repository_is_that_of_the_file(repository, tmp_path, monkeypatch):
    other = Repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other.folder / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other.folder / ".git" / "index"))
    (choice,) = impls(repository, "impl.rev=HEAD~1")
    assert factor(choice) == 2


def test_without_a_revision_a_case_has_the_fields_that_it_had_before(repository):
    (choice,) = impls(repository)
    assert list(choice.fields) == ["path"]
    assert impls(repository, "impl.rev=worktree") == [choice]
    assert implementations.checked(Choice("naive", {})) == Choice("naive", {})


def test_a_baseline_may_be_a_revision(repository):
    assert impls(repository, "impl.rev=HEAD~1,worktree", "baseline=file@HEAD~1")
    with pytest.raises(BadInput, match=r"baseline=file@HEAD: not in this sweep; .*file@HEAD~1, file@worktree"):
        impls(repository, "impl.rev=HEAD~1,worktree", "baseline=file@HEAD")


def test_helpers_in_other_folders_of_the_repository_come_from_the_revision(tmp_path, monkeypatch):
    made = Repository(tmp_path / "repo")
    kernel = (
        "import importlib\nfrom pkg.sub.values import VALUE\nimport pkg.sub.values as values\nimport pkg.base\n"
        "def f(x): return x * VALUE\n"
        "def g(x): return x * values.VALUE\n"
        "def h(x):\n    import pkg.sub.values\n    return x * pkg.sub.values.VALUE\n"
        "def i(x): return x * importlib.import_module('pkg.sub.values').VALUE\n"
        "def l(x): return x * __import__('pkg.sub.values').sub.values.VALUE\n"
        "def j(x): return x * pkg.base.ten()\n"
        "def k(x): return x * importlib.import_module('.'.join(['pkg', 'sub', 'values'])).VALUE\n"
    )
    base = "def ten():\n    from pkg.sub.values import VALUE\n    return 10 * VALUE\n"
    files = {"my-kernels/k.py": kernel, "pkg/__init__.py": "", "pkg/sub/__init__.py": "", "pkg/base.py": base}
    made.commit({**files, "pkg/sub/values.py": "VALUE = 2\n"})
    made.write({"pkg/sub/values.py": "VALUE = 3\n"})
    monkeypatch.chdir(made.folder)
    monkeypatch.syspath_prepend(str(made.folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "pkg"]:
        monkeypatch.delitem(sys.modules, name)
    for name, old, new in [("f", 2, 3), ("g", 2, 3), ("h", 2, 3), ("i", 2, 3), ("l", 2, 3), ("j", 20, 30), ("k", 2, 3)]:
        now, before = impls(made, "impl.rev=worktree,HEAD", path=f"my-kernels/k.py:{name}")
        assert (factor(now), factor(before)) == (new, old), name


def test_an_environment_inside_the_repository_stays_as_it_is(repository, monkeypatch):
    repository.write({".venv/lib/installed_y.py": "VALUE = 11\n", ".gitignore": ".venv\n"})
    commit = "import installed_y\ndef f(x): return installed_y.VALUE * x\n"
    repository.commit({"k.py": commit})
    monkeypatch.syspath_prepend(str(repository.folder / ".venv" / "lib"))
    (choice,) = impls(repository, "impl.rev=HEAD")
    assert factor(choice) == 11


def test_other_files_beside_it_come_from_the_revision(tmp_path):
    made = Repository(tmp_path / "repo")
    kernel = "from pathlib import Path\ndef f(x): return Path(__file__).with_name('k.cu').read_text()\n"
    made.commit({"k.py": kernel, "k.cu": "old"})
    made.write({"k.cu": "new"})
    (choice,) = impls(made, "impl.rev=HEAD")
    assert factor(choice) == "old"


def test_the_repository_is_only_read(repository, cache):
    (repository.folder / "untracked").write_text("x")
    repository.git("add", "untracked")
    before = repository.git("status", "--porcelain"), (repository.folder / ".git" / "index").read_bytes()
    (choice,) = impls(repository, "impl.rev=HEAD~1")
    assert factor(choice) == 2
    assert before == (repository.git("status", "--porcelain"), (repository.folder / ".git" / "index").read_bytes())
    (folder,) = cache.iterdir()  # no scratch is left
    assert folder.name == choice.commit
    assert sorted(path.name for path in folder.iterdir()) == ["helper.py", "k.py"]


@pytest.mark.parametrize("of_user", [False, True])
def test_no_hook_filter_or_monitor_of_the_repository_is_run(repository, tmp_path, monkeypatch, of_user):
    repository.commit({".gitattributes": "*.py filter=a=b.c\n"})
    repository.write({"helper.py": "def factor(): return 7\n"})
    hook = repository.folder / ".git" / "hooks" / "post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran-hook\n")
    hook.chmod(0o755)
    for kind in ("clean", "smudge"):
        repository.git("config", f"filter.a=b.c.{kind}", f"touch {tmp_path}/ran-{kind}; cat")
    if not of_user:
        repository.git("config", "filter.a=b.c.process", f"touch {tmp_path}/ran-process; false")
        repository.git("config", "filter.a=b.c.required", "true")
    repository.git("config", "core.fsmonitor", f"touch {tmp_path}/ran-monitor; false")
    (tmp_path / "ran-hook").unlink(missing_ok=True)
    if of_user:  # the user's own filters run
        home = tmp_path / "home"
        home.mkdir()
        (home / ".gitconfig").write_text((repository.folder / ".git" / "config").read_text())
        (repository.folder / ".git" / "config").write_text("[core]\n\trepositoryformatversion = 0\n")
        monkeypatch.setenv("HOME", str(home))
    (choice,) = impls(repository, "impl.rev=HEAD")
    assert factor(choice) == 5
    assert Repositories().provenance([repository.folder / "helper.py"])["dirty"] is True
    ran = {path.name for path in tmp_path.glob("ran-*")}
    assert ran == ({"ran-smudge", "ran-clean"} if of_user else set())


def test_files_that_were_deleted_from_the_cache_are_written_again(repository, cache, tmp_path):
    (choice,) = impls(repository, "impl.rev=HEAD~1")
    shutil.rmtree(cache)
    script = tmp_path / "again.py"
    script.write_text(
        "from runner import implementations as i\nfrom runner.records.case import Choice as C\n"
        f"print(i.build(C('file', {dict(choice.fields)!r})).load('gelu')(1))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.check_output([sys.executable, script], text=True, env=environment) == "2\n"


def test_a_row_of_a_revision_is_out_of_date_only_if_its_commit_changes(repository, case):
    (choice,) = impls(repository, "impl.rev=main")
    one = case("file", impl_fields=dict(choice.fields))
    before = Fingerprints().of(one)
    repository.commit({"k.py": KERNEL + "# more\n1\n", "helper.py": "def factor(): return 9\n"})
    assert difference(Fingerprints().of(one), before) == ""
    (moved,) = impls(repository, "impl.rev=main")
    assert case("file", impl_fields=dict(moved.fields)).key != one.key


def test_compiled_and_cudagraph_wrap_a_revision(repository):
    path = f"impl.of={repository.folder}/k.py:f"
    line = ["workload=gelu", "workload.rows=2", "workload.cols=4", "device=cpu", "impl=compiled", path]
    plan = config.plan([*line, "impl.rev=HEAD~1,worktree", "-m"])
    old, new = (implementations.build(case.impl).inner.load("gelu") for case in plan.cases)  # type: ignore[attr-defined]
    assert (old(1), new(1)) == (2, 5)
    assert [case.impl.revision for case in plan.cases] == ["HEAD~1", ""]


def test_two_files_that_register_one_operator_are_not_compared(tmp_path):
    """Torch would run the later one for both."""
    made = Repository(tmp_path / "repo")
    kernel = (
        "import torch\n@torch.library.custom_op('mine_rev::twice', mutates_args=())\n"
        "def twice(x: torch.Tensor) -> torch.Tensor: return FACTOR * x\ndef f(x): return twice(x)\n"
    )
    made.commit({"k.py": kernel.replace("FACTOR", "2")})
    made.write({"k.py": kernel.replace("FACTOR", "3")})
    old, new = (implementations.build(choice) for choice in impls(made, "impl.rev=HEAD,worktree"))
    assert old.load("gelu")(torch.ones(1)).item() == 2
    with pytest.raises(Unsupported, match="both register the operator mine_rev::twice"):
        new.load("gelu")
    assert old.load("gelu")(torch.ones(1)).item() == 2


def test_a_revision_without_the_file_is_said_in_the_row(repository):
    repository.commit({"late.py": "def f(x): return x\n"})
    now, before = impls(repository, "impl.rev=worktree,HEAD~1", path="late.py:f")
    assert implementations.build(now).missing("gelu") == ""
    commit = repository.git("rev-parse", "HEAD~1")[:10]
    assert implementations.build(before).missing("gelu") == (
        f"there is no {repository.folder}/late.py in HEAD~1 ({commit})"
    )


def test_a_repository_without_a_commit_has_no_revisions(tmp_path):
    empty = Repository(tmp_path / "empty")
    empty.write({"k.py": KERNEL, "helper.py": ""})
    with pytest.raises(BadInput, match=r"^impl\.rev=HEAD: \S+/empty has no commit yet; commit the files"):
        impls(empty, "impl.rev=HEAD")


def test_a_file_that_was_deleted_since_can_still_be_run(repository):
    (repository.folder / "k.py").unlink()
    (choice,) = impls(repository, "impl.rev=HEAD")
    assert factor(choice) == 3


def test_a_function_that_the_revision_lacks_is_named_with_it(repository):
    (choice,) = impls(repository, "impl.rev=HEAD", path="k.py:g")
    with pytest.raises(Unsupported, match=r"k\.py in HEAD \(\w{10}\) defines no function g; it defines: f"):
        implementations.build(choice).load("gelu")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["impl.rev=mian"], r"impl\.rev=mian: no such revision in \S+; did you mean main.* git fetch"),
        (["impl.rev=HEAD~9"], r"impl\.rev=HEAD~9: no such revision"),
        (["impl.rev=--all"], r"impl\.rev=--all: no such revision"),
        (["impl.rev=main@" + 40 * "1"], r"has no commit 1111111111 any more; fetch it with"),
        (["impl.rev=main,"], "there is nothing before or after a comma"),
        (["impl.rev=[main,v1.0]"], "takes one value; to sweep: impl.rev=main,v1.0 -m"),
        (["impl=compiled", "impl.of=torch", "impl.rev=HEAD"], r"compiled\(of=torch\) has no revisions here"),
        (["impl=torch", "impl.rev=HEAD"], "impl=torch has no such field"),
    ],
)
def test_a_mistake_is_one_line(repository, words, message):
    with pytest.raises(BadInput, match=message) as raised:
        impls(repository, *words) if not words[0].startswith("impl=") else config.plan(["workload=gelu", *words])
    assert "\n" not in str(raised.value)


def test_a_shallow_clone_says_what_to_fetch(repository, tmp_path):
    repository.commit({})
    source = f"file://{repository.folder}"
    subprocess.run(["git", "clone", "-q", "--depth=1", source, str(tmp_path / "shallow")], check=True)
    shallow = object.__new__(Repository)
    shallow.folder = tmp_path / "shallow"
    with pytest.raises(BadInput, match=r"shallow clone .*git fetch --unshallow .*fetch-depth: 0"):
        impls(shallow, "impl.rev=HEAD~1")
    (choice,) = impls(shallow, "impl.rev=HEAD")
    assert choice.revision == "HEAD"


def test_a_file_outside_git_is_refused(tmp_path):
    (tmp_path / "k.py").write_text(KERNEL)
    outside = object.__new__(Repository)
    outside.folder = tmp_path
    with pytest.raises(BadInput, match=r"k\.py is not in a git repository"):
        impls(outside, "impl.rev=HEAD")


def test_without_git_it_says_so(repository, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BadInput, match=r"impl\.rev: needs git, which is not installed"):
        impls(repository, "impl.rev=HEAD")


def test_a_cache_that_others_can_write_to_is_not_run(repository, cache):
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with pytest.raises(BadInput, match="others can write to"):
        impls(repository, "impl.rev=HEAD")


def test_an_old_revision_of_the_kernels_lives_beside_the_new_one(tmp_path):
    """Its helpers are its own; what kernels and the runner talk by is shared."""
    old = tmp_path / "kernels"
    shutil.copytree(KERNELS.resolve(), old, ignore=shutil.ignore_patterns("__pycache__"))
    (old / "helper.py").write_text("def two(): return 2\n")
    (old / "gelu" / "naive.py").write_text(
        "from ..helper import two\nfrom ..unsupported import Unsupported\n"
        "from ..spans import span\nfrom .torch import gelu as other\n"
        "def gelu(x, *, form): return two() * other(x, form=form)\n"
    )
    from importlib import import_module

    from runner.kernels import spans

    module = import_module(f"{loader.revision_package(old)}.gelu.naive")
    new = implementations.build(Choice("naive", {})).load("gelu")
    x = torch.linspace(-3, 3, 7)
    torch.testing.assert_close(module.gelu(x, form="erf"), 2 * new(x, form="erf"))
    assert module.Unsupported is Unsupported
    assert module.span is spans.span
    assert module.other.__module__.startswith("folder_")
    assert loaded_kernels("gelu.naive")[-1] is module  # inspect sees it


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout")
def test_the_kernels_of_the_last_commit_run_here():
    words = ["workload=gelu", "workload.rows=2", "workload.cols=8", "workload.dtype=float32", "device=cpu"]
    plan = config.plan([*words, "impl=naive,torch", "impl.rev=HEAD,worktree", "-m"])
    labels = Labels(case.impl for case in plan.cases)
    assert {labels.label(case.impl) for case in plan.cases} == {"naive@HEAD", "naive@worktree", "torch"}
    (choice,) = (case.impl for case in plan.cases if case.impl.revision)
    old = implementations.build(choice)
    assert old.missing("gelu") == ""
    assert old.missing("nope") == f"there is no kernels/nope/naive.py in HEAD ({choice.commit[:10]})"
    x = torch.linspace(-3, 3, 7)
    assert old.load("gelu")(x, form="erf").shape == x.shape
    cuda = implementations.checked(Choice("cuda", {"build": "nvrtc", "variant": "default", "rev": "HEAD"}))
    assert implementations.build(cuda).missing("gelu") == ""
