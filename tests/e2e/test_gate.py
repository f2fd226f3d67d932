"""``runner gate`` on a user's own repository, on a CPU: what it prints, and its exit code."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FAST = "import torch\n\ndef add(a, b):\n    return a + b\n"
SLOW = "import torch\n\ndef add(a, b):\n    for _ in range(20): a + b\n    return a + b\n"
GRID = ["workload=add", "workload.rows=64", "workload.cols=1000,4096", "impl=file", "impl.path=k.py:add", "device=cpu"]
QUICK = ["measure.benchmark.samples=20", "measure.benchmark.max_s=0.2", "measure.benchmark.warmup_s=0"]
SURE = [QUICK[0], "measure.benchmark.max_s=60", "measure.benchmark.target_cpu_pct=1e6", QUICK[2]]  # 20 samples each


def git(folder, *words):
    return subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=folder, check=True, capture_output=True
    )


@pytest.fixture
def repository(tmp_path):
    """A repository with ``k.py`` in two commits, of which the second changes another file only."""
    (tmp_path / ".gitignore").write_text("outputs\n")
    (tmp_path / "k.py").write_text(FAST)
    git(tmp_path, "init", "-q", "-b", "main", ".")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    (tmp_path / "other.py").write_text("")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "two")
    return tmp_path


@pytest.fixture
def gate(command):
    """``gate("--against", "main", ...)``: the finished command."""

    def go(*words, overrides=(), **options):
        whole, more = command()
        place = whole.index("runner") + 1
        given = [*words, *overrides, *(() if "--baseline" in words else whole[place:])]
        return subprocess.run(
            [*whole[:place], "gate", *given],
            capture_output=True, encoding="utf-8", timeout=300, check=False, **more, **options,
        )  # fmt: skip

    return go


def test_what_is_unchanged_is_not_measured_unless_asked_for(run, gate, repository):
    run(*GRID, *QUICK, "-m")  # it records which files the cases use
    found = gate("--against", "main", overrides=[*GRID, *QUICK])
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[1:] == [
        "  skipped: 2, all files that they use are the same in both; --all measures them too",
        "PASS: nothing that these cases run has changed (0 compared with main, 2 skipped)",
    ]
    assert len(list(repository.glob("outputs/*/*"))) == 1
    one = [*GRID, *QUICK, "workload.cols=1000"]
    found = gate("--against", "HEAD~1", "--all", "--max-slowdown", "300%", overrides=one)
    assert found.returncode == 0, found.stdout
    assert "file@HEAD~1" in found.stdout
    assert "PASS: nothing is slower by more than 300 % (1 compared with HEAD~1)" in found.stdout


def test_a_slower_working_tree_fails_and_the_summary_says_so(gate, repository):
    (repository / "k.py").write_text(SLOW)
    overrides = [*GRID, *SURE, "impl=file,torch"]
    found = gate("--against", "main", "--repeat", "0", "--summary", "deep/gate.md", overrides=overrides)
    assert found.returncode == 1, found.stdout + found.stderr
    *_, slower, also, skipped, last = found.stdout.splitlines()
    assert slower.startswith("  slower: add cols=")
    assert also.startswith("  slower: add cols=")
    assert skipped.startswith("  skipped: 2, PyTorch's own operators")
    assert last == "FAIL: 2 slower by more than 3 % (2 compared with main, 2 skipped)"
    summary = (repository / "deep" / "gate.md").read_text()
    assert summary.startswith("**FAIL**: 2 slower by more than 3 %")
    assert "--summary deep/gate.md" in summary
    assert not git(repository, "status", "--porcelain", "-uno", "--", ":!k.py").stdout


def test_a_slowdown_is_confirmed_by_more_processes_in_the_same_folder(gate, repository):
    (repository / "k.py").write_text(SLOW)
    overrides = [*GRID[:2], "workload.cols=1000", *GRID[3:], *SURE]
    found = gate("--against", "main", "--repeat", "1", overrides=overrides)
    assert found.returncode == 1, found.stdout + found.stderr
    assert "gate: 1 slower or unclear; measured again in 2 more processes" in found.stdout
    assert len(list(repository.glob("outputs/*/*"))) == 1


def test_a_wrong_result_and_a_failure_that_were_not_there_before_fail(gate, repository):
    bad = "\n\ndef bad(a, b):\n    return a - b\n"
    (repository / "k.py").write_text(f"{FAST}\n\ndef old(a, b):\n    return a + b\n{bad}")
    git(repository, "commit", "-qam", "more")
    (repository / "k.py").write_text(f"def add(a, b):\n    return a\n\ndef old(a, b):\n    raise ValueError\n{bad}")
    paths = "impl.path=k.py:add,k.py:old,k.py:bad"
    overrides = [*GRID[:2], "workload.cols=1000", "impl=file", paths, "device=cpu", *QUICK]
    found = gate("--against", "HEAD", overrides=overrides)
    assert found.returncode == 1, found.stdout
    assert "wrong: add file(add): " in found.stdout
    assert "failing: add file(old): error: " in found.stdout
    assert "not judged: add file(bad): wrong in both: " in found.stdout
    assert "FAIL: 1 wrong, 1 failing (2 compared with HEAD)" in found.stdout


def test_a_file_that_the_revision_lacks_is_listed_and_not_judged(gate, repository):
    (repository / "new.py").write_text(FAST)
    overrides = [*GRID[:2], "workload.cols=1000", "impl=file", "impl.path=new.py:add", "device=cpu", *QUICK]
    found = gate("--against", "main", overrides=overrides)
    assert found.returncode == 3, found.stdout
    assert "new: add file: there is no new.py in main" in found.stdout
    assert "UNCLEAR: nothing could be compared (0 compared with main)" in found.stdout


def test_a_shallow_clone_and_an_unknown_revision_are_refused_in_one_line(gate, repository, tmp_path_factory):
    found = gate("--against", "mian", overrides=GRID)
    assert found.returncode == 2
    assert found.stderr.startswith("runner: --against mian: no such revision in ")
    clone = tmp_path_factory.mktemp("clone") / "shallow"
    git(repository, "clone", "-q", "--depth", "1", f"file://{repository}", str(clone))
    overrides = [one.replace("k.py", f"{clone}/k.py") for one in GRID]
    found = gate("--against", "HEAD~1", overrides=overrides)
    assert found.returncode == 2
    assert "shallow clone" in found.stderr
    assert "fetch-depth: 0" in found.stderr
    assert found.stderr.count("\n") == 1


MISTAKES = {
    "give --against <git revision>": [],
    "--max-slowdown 3: write 3% or 0.03": ["--against", "main", "--max-slowdown", "3"],
    "--max-slowdown 0%: give a share above 0": ["--against", "main", "--max-slowdown", "0%"],
    "--repeat -1: give a whole number": ["--against", "main", "--repeat", "-1"],
    "resume: a gate measures both": ["--against", "main", "resume=last"],
    "leave impl.rev out": ["--against", "main", *GRID, "impl.rev=main"],
    "measure: a gate compares times": ["--against", "main", *GRID, "measure=memory"],
    "impl: torch: PyTorch's own operators have no revisions here": ["--against", "main", *GRID[:3], "impl=torch"],
    "give --summary FILE elsewhere": ["--against", "main", *GRID, "--summary", "k.py/x.md"],
    "nothing.here: there is no such folder": ["--baseline", "nothing.here", "last"],
    "workload: not an argument of gate --baseline": ["--baseline", "a", "b", "workload=gelu"],
}


@pytest.mark.parametrize(("said", "words"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_one_line_that_says_what_to_do(gate, repository, said, words):
    found = gate(*words)
    assert found.returncode == 2, found.stdout
    assert said in found.stderr
    assert found.stderr.count("\n") == 1


def test_two_runs_are_judged_without_measuring(run, gate, repository):
    one = [*GRID, *QUICK, "workload.cols=1000", "replicas=3", "-m"]
    run(*one)
    first = next(repository.glob("outputs/*/*"))
    (repository / "k.py").write_text("import time\n\ndef add(a, b):\n    time.sleep(0.002)\n    return a + b\n")
    run(*one)
    (second,) = set(repository.glob("outputs/*/*")) - {first}
    before = {path: path.stat().st_mtime_ns for path in repository.rglob("outputs/**/*")}
    found = gate("--baseline", str(first), str(second))
    assert found.stdout.startswith(f"gate: {second} against {first}\n"), found.stderr
    assert found.returncode in (1, 3), found.stdout  # a busy machine gives no certain time
    assert gate("--baseline", str(second), str(first), "--max-slowdown", "500%").returncode in (0, 3)
    assert before == {path: path.stat().st_mtime_ns for path in repository.rglob("outputs/**/*")}
    with open(first / "rows.jsonl", "a") as journal:
        journal.write('{"record": "row", "ca')
    damaged = gate("--baseline", str(first), "last")
    assert damaged.returncode == found.returncode
    said = "1 record of its journal cannot be read: damaged or cut off"
    assert damaged.stderr == f"runner: {first}: {said}\n"
    assert damaged.stdout == found.stdout.replace(str(second), str(second.relative_to(repository)))


def test_the_workflow_of_the_documents_runs_a_gate_that_composes(gate, repository):
    page = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    workflow = yaml.safe_load(block)
    steps = workflow["jobs"]["gate"]["steps"]
    assert steps[0]["with"]["fetch-depth"] == 0
    (line,) = [line.strip() for line in steps[1]["run"].splitlines() if "python -m runner" in line]
    words = shlex.split(line)
    assert words[:4] == ["python", "-m", "runner", "gate"]
    words[words.index("--against") + 1] = "no-such-revision"  # what comes before that is refused has composed
    found = gate(*words[4:])
    assert found.returncode == 2
    assert found.stderr.startswith("runner: --against no-such-revision: no such revision in ")
    assert (repository / "gate.md").read_text().startswith("**UNCLEAR**: the gate ended before it had decided")
    assert all(step.get("shell") == "bash" for step in steps[1:])


OWN = """import torch
def inputs(rows=64, cols=256): return torch.randn(rows, cols), torch.ones(cols)
def reference(x, w, eps=1e-6): return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w
def fused(x, w, eps=1e-6): return torch.nn.functional.rms_norm(x, x.shape[-1:], w, eps)
def triton(x, w, eps=1e-6): return fused(x, w, eps)
"""
NOTE = "gate: rms_norm.py: inputs, reference or limits are others in HEAD; "


@pytest.fixture
def own(repository):
    """A repository with a workload in ``rms_norm.py``; ``own(old, new)`` edits it."""
    path = repository / "rms_norm.py"
    path.write_text(OWN)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "three")

    def edit(*edits):
        text = OWN
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)

    return edit


def test_an_edit_of_one_function_in_a_workloads_file_measures_that_function_alone(run, gate, own):
    own(("rms_norm(x,", f"rms_norm(x{'.clone()' * 24},"), ("def triton", "def gone"))
    words = ["workload=rms_norm.py", "impl=reference,fused", "device=cpu", *QUICK]
    run(*words, "-m")  # it records which files the cases use
    words[1] += ",triton"  # also the name of an option
    found = gate("--against", "HEAD", overrides=words)
    assert found.returncode == 1, found.stdout + found.stderr
    assert re.search(r"^  slower: rms_norm.py fused: ", found.stdout, re.MULTILINE)
    assert "  removed: rms_norm.py triton: rms_norm.py has no function triton; choose" in found.stdout
    assert "  skipped: 1, all files that they use are the same in both" in found.stdout
    assert NOTE not in found.stdout


def test_the_gate_says_that_both_sides_use_the_inputs_of_the_working_tree(run, gate, own):
    own(("torch.ones(cols)", "2 * torch.ones(cols)"))
    words = ["workload=rms_norm.py", "impl=fused", "device=cpu", *QUICK]
    run(*words)
    found = gate("--against", "HEAD", overrides=words)
    assert found.returncode == 0, found.stdout + found.stderr
    (note,) = [line for line in found.stdout.splitlines() if line.startswith(NOTE)]
    assert note.endswith("both sides use those of the working tree")
    assert "1 skipped" in found.stdout


def test_a_change_that_breaks_what_both_sides_share_fails(gate, own, repository):
    (repository / "helper.py").write_text("")
    own(("import torch", "import torch, helper"))
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "four")
    words = ["workload=rms_norm.py", "impl=reference,fused", "device=cpu", *QUICK]
    (repository / "helper.py").write_text("def (")
    found = gate("--against", "HEAD", "--repeat", "0", overrides=words)
    assert found.returncode == 1, found.stdout + found.stderr
    assert "  failing: rms_norm.py fused: error: SyntaxError" in found.stdout
    assert "both sides used helper.py of the working tree, which differs in the revision" in found.stdout
    (repository / "helper.py").write_text("")
    added = "def added(x, w, eps=1e-6): return fused(x, w, eps)\ndef inputs"
    own(("import torch", "import torch, helper"), ("eps) * w", "eps) * w * 1.5"), ("def inputs", added))
    words[1] = "impl=fused,added"
    found = gate("--against", "HEAD", "--repeat", "0", overrides=words)
    assert found.returncode == 1, found.stdout + found.stderr
    assert "  wrong: rms_norm.py fused: the output: " in found.stdout
    assert "; both sides used rms_norm.py of the working tree" in found.stdout
    assert re.search(r"^  new: rms_norm.py added: rms_norm.py in HEAD .* no function added", found.stdout, re.MULTILINE)


OPTION = "# an option\nname: twice\npath: k.py:add\nargs: {{times: {}}}\n"
STUDY = """# @package _global_
defaults:
  - override /workload: add
  - override /impl: twice
axes: {{workload.cols: [1000, {}]}}
workload: {{rows: 64}}
"""
REPEATED = "import torch\n\ndef add(a, b, *, times=1):\n    for _ in range(times): a + b\n    return a + b\n"


@pytest.fixture
def mine(repository):
    """A repository with a folder for ``--config-dir``, committed; ``mine(times, cols)`` writes its files."""

    def write(times, cols=4096):
        for group, text in (("impl/twice", OPTION.format(times)), ("experiment/study", STUDY.format(cols))):
            path = repository / "mine" / f"{group}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    (repository / "k.py").write_text(REPEATED)
    write(1)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "three")
    return write


def test_fields_of_a_yaml_file_that_differ_in_the_revision_are_compared(run, gate, mine):
    words = ["--config-dir", "mine", "+experiment=study", "device=cpu", *QUICK]
    mine(30, 2048)
    run(*words, "-m")  # it records which files the cases use
    found = gate("--against", "HEAD", "--repeat", "0", overrides=words)
    assert found.returncode == 1, found.stdout + found.stderr
    assert re.search(r"^  slower: add cols=1000 twice\(times=30\): ", found.stdout, re.MULTILINE)
    assert "  new: add cols=2048 twice(times=30): not in the YAML files of HEAD" in found.stdout.splitlines()
    assert "  removed: add cols=4096 twice(times=1): only in the YAML files of HEAD" in found.stdout.splitlines()


def test_yaml_files_that_do_not_fit_the_code_have_everything_measured(run, gate, mine, repository):
    words = ["--config-dir", "mine", "workload=add", "impl=twice", "workload.rows=64", "device=cpu", *QUICK]
    (repository / "k.py").write_text(REPEATED.replace("times", "often"))
    (repository / "mine/impl/twice.yaml").write_text(OPTION.format(1).replace("times", "often"))
    found = gate("--against", "HEAD", "--repeat", "0", "--max-slowdown", "900%", overrides=words)
    assert "gate: --config-dir mine in HEAD: impl.args.times: no such argument of add/twice;" in found.stdout
    assert "both sides use the YAML files of the working tree, and everything is measured" in found.stdout
