"""Whatever a case really used makes its row out of date when it changes, and is measured by the gate."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
GRID = ["workload=add", "workload.rows=8", "workload.cols=16", "impl=file", "device=cpu", "log=none"]
GRID += ["measure.benchmark.samples=20", "measure.benchmark.max_s=0.02", "measure.benchmark.warmup_s=0"]
HEAD = """import ctypes, importlib, json, mmap, os, subprocess, sys, tempfile
from pathlib import Path
import torch
HERE = Path(__file__).parent

def compiled(*command):
    library = tempfile.mkdtemp() + "/n.so"
    subprocess.run([*command, "-shared", "-o", library], cwd=HERE, check=True)
    return ctypes.CDLL(library).n()

def launched(source):
    from runner import cuda_kernel
    try:
        cuda_kernel(source, "k", grid=1, block=1, arguments=lambda x, y: (x, y))(torch.ones(1))
    except Exception as error:
        assert "NVIDIA GPU" in str(error), error
    return 0

"""
ADD = "\ndef add(a, b):\n    for _ in range(N): a + b\n    return a + b\n"
FUNCTION = '#include "{0}"\nextern "C" int n() {{ return NUMBER; }}\n'
OWN = """import torch
from functools import cache
from scaled import scale, json, HERE
@cache
def read(): return json.load(open(HERE / "factor.json"))
def inputs(rows=8): return (scale() * torch.randn(rows, 16),)
def reference(x): return 2 * x
def other(x): return read() * x
def another(x): return x * read()
"""
HELPED = """import torch, helper, nested.part
def inputs(rows=8): return (torch.randn(rows, 16),)
def reference(x): return nested.part.N * x
def mine(x): return helper.twice(x)
"""
LEVELS = (1, 2)  # what the kernel uses itself, and what a module uses that it imports

Content = str | bytes | Path | None  # of a file, the target of a link, or no file


@dataclass
class Kind:
    """A way to use a file: statements that get N, the file, its content, and that after a change. {0}: the level."""

    statements: str
    file: str
    before: Content = "N = 0\n"
    after: Content = "N = 9\n"


HEADERS = "#define NUMBER 0\n", "#define NUMBER 9\n"


def numpy_file(value):
    """The content of an array of numpy."""
    file = io.BytesIO()
    np.save(file, value)
    return file.getvalue()


def torch_file(value):
    """The content of a value that torch has saved."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def zipped(text):
    """An archive with a module for each level."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for level in LEVELS:
            archive.writestr(f"zipped_{level}.py", text)
    return file.getvalue()


DRAWN = {
    "module": Kind("from module_{0} import N", "module_{0}.py"),
    "package": Kind("from package_{0}.deep import N", "package_{0}/deep.py"),
    "JSON": Kind("N = json.load(open(HERE / 'n_{0}.json'))", "n_{0}.json", "0", "9"),
    "cuh": Kind("N = compiled('nvcc', '-Xcompiler', '-fPIC', 'cuda_{0}/k.cu')", "cuda_{0}/k.cuh", *HEADERS),
    "pth": Kind("from pth_{0} import N", "library/pth_{0}.py"),
    "computed": Kind("N = importlib.import_module('computed' + '_{0}').N", "computed_{0}.py"),
    "path": Kind("sys.path.insert(0, str(HERE / 'src_{0}'))\nfrom in_src import N", "src_{0}/in_src.py"),
    "linked folder": Kind("N = json.load(open(HERE / 'cur_{0}/n.json'))", "cur_{0}", Path("old"), Path("new")),
    "linked path": Kind(
        "sys.path.append(str(HERE / 'to_{0}'))\nfrom linked_{0} import N", "to_{0}", Path("old"), Path("new")
    ),
}  # fmt: skip
OTHERS = {
    "init": Kind("from init_{0}.deep import N", "init_{0}/__init__.py", "", "import os"),
    "built-in import": Kind("N = __import__('builtin' + '_{0}').N", "builtin_{0}.py"),
    "executed": Kind("exec((HERE / 'run_{0}.txt').read_text())", "run_{0}.txt"),
    "relative to the current folder": Kind("N = json.load(open('config/n_{0}.json'))", "config/n_{0}.json", "0", "9"),
    "hidden": Kind("N = json.load(open(HERE / '.config/n_{0}.json'))", ".config/n_{0}.json", "0", "9"),
    "without a suffix": Kind("N = json.load(open(HERE / 'N{0}'))", "N{0}", "0", "9"),
    "numpy": Kind("import numpy\nN = int(numpy.load(HERE / 'n_{0}.npy'))", "n_{0}.npy", *map(numpy_file, (0, 9))),
    "torch": Kind("N = torch.load(HERE / 'n_{0}.pt')", "n_{0}.pt", *map(torch_file, (0, 9))),
    "os.open": Kind("N = int(os.read(os.open(HERE / 'n_{0}.bin', os.O_RDONLY), 1))", "n_{0}.bin", "0", "9"),
    "mmap": Kind("f = open(HERE / 'm_{0}')\nN = int(mmap.mmap(f.fileno(), 0, prot=1)[:1])", "m_{0}", "0", "9"),
    "C++": Kind("N = int(torch.from_file(str(HERE / 'c_{0}'), size=1, dtype=torch.uint8)) - 48", "c_{0}", "0", "9"),
    "resource": Kind(
        "import importlib.resources\nN = int((importlib.resources.files('resource_{0}') / 'n.txt').read_text())",
        "resource_{0}/n.txt", "0", "9",
    ),
    "zip": Kind(
        "sys.path.insert(0, str(HERE / 'z_{0}.zip'))\nfrom zipped_{0} import N",
        "z_{0}.zip", *map(zipped, ("N = 0", "N = 9")),
    ),
    "link": Kind("N = json.load(open(HERE / 'link_{0}.json'))", "link_{0}.json", Path("zero.json"), Path("nine.json")),
    "child": Kind(
        "read = 'print(open(\"child_{0}.txt\").read())'\n"
        "N = int(subprocess.check_output([sys.executable, '-c', read], cwd=HERE))",
        "child_{0}.txt", "0", "9",
    ),
    "header": Kind("N = compiled('g++', '-fPIC', 'cpp_{0}/k.cpp')", "cpp_{0}/k.h", *HEADERS),
    "listed": Kind("N = len([*HERE.glob('listed_{0}/*')])", "listed_{0}/b.json", None, "1"),
    "deleted": Kind("N = json.load(open(HERE / 'delete_{0}.json'))", "delete_{0}.json", "0", None),
    "added file": Kind("N = int((HERE / 'added_{0}.txt').exists())", "added_{0}.txt", None, ""),
    "added module": Kind("try:\n    from added_{0} import N\nexcept ImportError:\n    N = 0", "added_{0}.py", None),
    "hidden module": Kind(
        "sys.path.append(str(HERE / '.lib'))\nN = importlib.import_module('hidden_{0}').N", ".lib/hidden_{0}.py"
    ),
    "shadowing module": Kind(
        "sys.path[:0] = [str(HERE / 'over'), str(HERE / 'under')]\nfrom shadowed_{0} import N",
        "over/shadowed_{0}.py", None, "N = 9",
    ),
    "added JSON": Kind("try:\n    N = len(open('a_{0}').read())\nexcept OSError:\n    N = 0", "a_{0}", None, "9"),
    "in the call": Kind(
        "class Lazy:\n    def __index__(self): return int((HERE / 'call_{0}').read_text())\nN = Lazy()",
        "call_{0}", "0", "9",
    ),
    "of an earlier case": Kind("from shared import N", "shared.json", "0", "9"),
}  # fmt: skip
# First: it imports kernels of this project, for which all counts that earlier cases have read. Without a GPU it
# gives no number, so that no change of it is slower.
KINDS = {"cuda_kernel": Kind("N = launched('launch_{0}/k.cu')", "launch_{0}/deep/k.cuh", *HEADERS)} | DRAWN | OTHERS


def kernel(kind, level):
    return f"k_{[*KINDS].index(kind)}_{level}.py"


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if isinstance(content, Path):
        path.symlink_to(content)
    elif content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A repository with a kernel of each kind and level, and a run of all of them."""
    top, site = (tmp_path_factory.mktemp(name) for name in ("repository", "site"))
    for kind, used in KINDS.items():
        for level in LEVELS:
            statements = HEAD + used.statements.format(level)
            if level == 2:
                between = kernel(kind, level).replace("k_", "between_")
                put(top / between, statements)
                statements = f"from {between.removesuffix('.py')} import N"
            put(top / kernel(kind, level), statements + ADD)
            put(top / used.file.format(level), used.before)
    for name in ("package_1", "package_2", "resource_1", "resource_2"):
        put(top / name / "__init__.py", "")
    for level in LEVELS:
        put(top / f"init_{level}/deep.py", "N = 0\n")
        put(top / f"listed_{level}/a.json", "")
        put(top / f"cpp_{level}/k.cpp", FUNCTION.format("k.h"))
        put(top / f"cuda_{level}/k.cu", FUNCTION.format("k.cuh"))
        put(top / f"launch_{level}/k.cu", '#include "deep/k.cuh"\n__global__ void k(int* x, int* y) { *y = NUMBER; }')
        put(top / f"under/shadowed_{level}.py", "N = 0\n")
    for name, number in (("old", 0), ("new", 9)):
        put(top / name / "n.json", str(number))
        for level in LEVELS:
            put(top / name / f"linked_{level}.py", f"N = {number}\n")
    put(top / "zero.json", "0")
    put(top / "nine.json", "9")
    put(top / "shared.py", HEAD + "N = json.load(open(HERE / 'shared.json'))\n")
    put(top / "below/ops.py", "from package_1.deep import N\n" + ADD)
    put(top / "plain/k.py", "N = 1\n" + ADD)
    put(top / "scale.json", "1")
    put(top / "factor.json", "2")
    put(top / "scaled.py", HEAD + "def scale():\n    return json.load(open(HERE / 'scale.json'))\n")
    put(top / "own.py", OWN)
    put(top / ".gitignore", "outputs\n__pycache__\n")
    put(site / "of_user.pth", f"{top}/library\n")
    put(site / "sitecustomize.py", f"import site\nsite.addsitedir({str(site)!r})\n")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=top, check=True)
    return top, site


@pytest.fixture(scope="module")
def runner(folder):
    """``runner(*words, cwd=".")``: the finished command, on a user's machine whose Python has a ``.pth`` file."""
    top, site = folder

    def go(*words, cwd=".", env=None):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "TRITON_"))}
        environment |= {"PYTHONPATH": f"{ROOT}:{site}", "CUDA_VISIBLE_DEVICES": ""} | (env or {})
        command = [sys.executable, "-m", "runner", *words]
        return subprocess.run(
            command, cwd=top / cwd, env=environment, capture_output=True, encoding="utf-8", check=False
        )

    return go


def kernels():
    return ",".join(f"{kernel(kind, level)}:add" for kind in KINDS for level in LEVELS if can(kind))


def can(kind):
    return kind != "cuh" or shutil.which("nvcc")


@pytest.fixture(scope="module")
def finished(runner):
    """The output of a run of all kernels."""
    ended = runner(*GRID, f"impl.path={kernels()}", "-m")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("third", range(3))
def test_a_row_is_out_of_date_when_a_file_that_it_used_changes(folder, finished, runner, third, level):
    kinds = [kind for kind in [*KINDS][third::3] if can(kind)]
    for kind in kinds:
        put(folder[0] / KINDS[kind].file.format(level), KINDS[kind].after)
    try:
        records = json.loads(runner("plan", "--format", "json", "resume=last").stdout)
    finally:
        for kind in kinds:
            put(folder[0] / KINDS[kind].file.format(level), KINDS[kind].before)
    again = {record["impl"]["path"].removesuffix(":add"): record["why"] for record in records if record["why"]}
    for kind in kinds:
        why = again.pop(kernel(kind, level), "it is kept")
        assert KINDS[kind].file.format(level).split("/")[0] in why, kind
    assert [*again] == [kernel(kind, 3 - level) for kind in kinds if kind == "of an earlier case"], again


def test_a_file_that_no_case_has_used_counts_for_none(folder, finished, runner):
    put(folder[0] / "notes.json", "1")
    put(folder[0] / "unused.py", "N = 1\n")
    records = json.loads(runner("plan", "--format", "json", "resume=last").stdout)
    assert {record["state"] for record in records} == {"kept"}


def gated(runner, *kinds, levels=LEVELS, **more):
    paths = ",".join(f"{kernel(kind, level)}:add" for kind in kinds for level in levels if can(kind))
    return runner("gate", "--against", "HEAD", "--repeat", "0", *GRID, f"impl.path={paths}", **more)


@pytest.fixture
def changed(folder):
    """``changed(kind, ...)``: these kinds' files are changed until the end of the test."""
    undo = []

    def change(*kinds):
        for used in (KINDS[kind] for kind in kinds):
            for level in LEVELS:
                path = folder[0] / used.file.format(level)
                put(path, used.after)
                undo.append((path, used.before))

    yield change
    for path, content in undo:
        put(path, content)


def test_the_gate_skips_what_has_not_changed_and_measures_every_change(runner, finished, changed):
    same = gated(runner, *DRAWN, levels=LEVELS[1:])  # a module's file; the kernel's own is found no otherwise
    count = len([kind for kind in DRAWN if can(kind)])
    assert same.stdout.splitlines()[1:] == [
        f"  skipped: {count}, all files that they use are the same in both; --all measures them too",
        f"PASS: nothing that these cases run has changed (0 compared with HEAD, {count} skipped)",
    ]
    assert same.returncode == 0
    changed(*DRAWN)
    slower = gated(runner, *DRAWN, levels=LEVELS[1:])
    # Beside other processes a time of 1 us may contradict its paired rounds, which leaves a change undecided.
    assert slower.stdout.endswith(f"({count} compared with HEAD)\n"), slower.stdout + slower.stderr
    assert slower.returncode in (1, 3)
    assert "measured although" not in slower.stdout


def test_a_row_of_the_changed_files_hides_no_change(runner, changed):
    kinds = ("path", "linked folder", "linked path")
    changed(*kinds)
    runner(*GRID, f"impl.path={','.join(f'{kernel(kind, level)}:add' for kind in kinds for level in LEVELS)}", "-m")
    assert gated(runner, *kinds).stdout.endswith("(6 compared with HEAD)\n")


def test_a_file_that_both_revisions_read_from_the_working_tree_leaves_the_gate_undecided(runner, finished, changed):
    changed("relative to the current folder")
    ended = gated(runner, "relative to the current folder")
    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert ended.stdout.count("; name such files from __file__, so that each revision reads its own") == 2
    assert "before the change it read config/n_1.json of the working tree too" in ended.stdout
    assert ended.stdout.endswith("UNCLEAR: 2 unclear (2 compared with HEAD)\n")


def test_a_kernel_below_the_top_imports_from_the_top_and_is_watched_there(runner, changed):
    words = ("gate", "--against", "HEAD", "--max-slowdown", "400%", "--repeat", "0", *GRID, "impl.path=ops.py:add")
    first = runner(*words, cwd="below")  # beside other processes a call of 1 us may take ten times as long
    assert first.stdout.endswith("(1 compared with HEAD)\n"), first.stdout + first.stderr
    assert "failing" not in first.stdout
    unknown = "no earlier run under outputs has recorded the files that they use"
    assert first.stdout.startswith(f"gate: measuring 1 without a known change: {unknown}\n")
    assert runner(*words, cwd="below").stdout.endswith("(0 compared with HEAD, 1 skipped)\n")
    changed("package")
    ended = runner(*words, cwd="below")
    assert ended.stdout.endswith("(1 compared with HEAD)\n"), ended.stdout + ended.stderr


def test_what_an_own_workload_reads_counts_for_all_cases_that_may_use_it(folder, runner):
    ended = runner("workload=own.py", "workload.rows=8,16", "impl=reference,other,another", *GRID[4:], "-m")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # Of all: inputs() reads it. Of two functions: they share what the first call has read.
    for name, value, other, count in (("scale.json", "1", "3", 6), ("factor.json", "2", "2.5", 4)):
        put(folder[0] / name, other)
        lines = runner("plan", "resume=last").stdout.splitlines()
        put(folder[0] / name, value)
        assert f"  {count} to run: {name} has changed" in lines


def test_a_row_is_dirty_if_any_file_that_it_used_differs_from_the_commit(folder, runner, changed):
    def dirty():
        runner(*GRID, f"impl.path={kernel('JSON', 2)}:add")
        (newest,) = sorted(folder[0].glob("outputs/*/*/rows.jsonl"), key=lambda path: path.stat().st_mtime)[-1:]
        rows = [record for record in map(json.loads, newest.read_text().splitlines()) if record["record"] == "row"]
        return [row["metrics"]["dirty"] for row in rows]

    assert dirty() == [False]
    changed("JSON")
    assert dirty() == [True]


def test_a_list_that_may_be_incomplete_is_measured_again_and_says_why(folder, runner):
    put(folder[0] / "early.py", "")
    put(folder[1] / "early/sitecustomize.py", f"import sys\nsys.path.append({str(folder[0])!r})\nimport early\n")
    early = {"PYTHONPATH": f"{ROOT}:{folder[1]}/early"}
    words = [*GRID, "impl.path=plain/k.py:add"]
    runner(*words, env=early)
    why = f"which files it uses is not known: {folder[0]}/early.py was imported before {folder[0]} could be watched"
    assert why in runner("plan", "resume=last", env=early).stdout
    assert "1 of 1 cases kept" in runner("plan", "resume=last", "resume.ignore=[sources]", env=early).stdout
    gate = runner("gate", "--against", "HEAD", *words, env=early)
    assert f"gate: measuring 1 without a known change: {why}\n" in gate.stdout


def test_a_file_of_any_name_counts_and_one_that_no_row_can_name_leaves_the_list_incomplete(folder, runner):
    put(folder[0] / "odd.py", f"{HEAD}N = [len(open(path).read()) for path in HERE.glob('*.dat')][0]\n{ADD}")
    words = [*GRID, "impl.path=odd.py:add"]
    put(folder[0] / "a\nb.dat", "1")
    runner(*words)
    put(folder[0] / "a\nb.dat", "22")
    assert "  1 to run: a?b.dat has changed" in runner("plan", "resume=last").stdout
    (folder[0] / "a\nb.dat").rename(folder[0] / "t\udce9.dat")
    ended = runner(*words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    why = rf"which files it uses is not known: the name of {folder[0]}/t\udce9.dat is not UTF-8; rename it"
    assert why in runner("plan", "resume=last").stdout


def test_a_neighbour_that_reads_another_kernel_adds_no_file_to_its_rows(run, tmp_path):
    (tmp_path / "mine.py").write_text("def add(a, b): return a + b\n")
    kernel, ended = ROOT / "kernels" / "add" / "naive.py", threading.Event()

    def read_often():
        while not ended.wait(0.0005):
            kernel.read_bytes()

    neighbour = threading.Thread(target=read_often)
    neighbour.start()
    try:
        words = ["workload.cols=16,32,48", "impl=naive,file", "impl.path=mine.py:add", "-m"]
        result = run(*(word for word in GRID if not word.startswith(("impl", "workload.cols"))), *words)
    finally:
        ended.set()
        neighbour.join()
    assert result.code == 0, result.err
    uses = [(row["case"]["impl"]["name"], "mine.py" in row["fingerprint"]) for row in result.rows()]
    assert uses == [("naive", False), ("file", True)] * 3


def test_what_the_workload_imports_is_no_file_of_the_implementation(run, tmp_path):
    """The workload is that of the working tree, and so is what it imports; a revision's functions have their own."""
    put(tmp_path / "twice.py", HELPED)
    put(tmp_path / "kern.py", "import helper\ndef mine(x): return helper.twice(x)\n")
    put(tmp_path / "helper.py", "def twice(x): return x + x\n")
    put(tmp_path / "nested/__init__.py", "")
    put(tmp_path / "nested/part.py", "import json\nN = json.load(open(__file__.replace('part.py', 'n.json')))\n")
    put(tmp_path / "nested/n.json", "2")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=tmp_path, check=True)
    put(tmp_path / "helper.py", "def twice(x): return 3 * x\n")
    put(tmp_path / "nested/n.json", " 2")
    for impl in (["impl=mine"], ["impl=file", "impl.path=kern.py:mine"]):
        result = run("workload=twice.py", *impl, "impl.rev=HEAD,worktree", *GRID[4:], "-m")
        before, after = result.rows()
        assert (before["status"], after["status"]) == ("ok", "wrong"), result.out
        assert "worktree_files" not in before["metrics"]
        assert before["metrics"]["verdict"] != "fallback"
        assert {"helper.py", "nested/n.json"} <= before["fingerprint"].keys()
