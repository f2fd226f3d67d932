"""Scripts, packages, and folders with modules that are called as Python's own, through the command line."""

from __future__ import annotations

import subprocess

import pytest

QUICK = ("device=cpu", "quick=true", "measure.benchmark.max_s=0.02", "measure.benchmark.paired_rounds=0")
SCRIPT = """
import argparse, os, sys, torch
argparse.ArgumentParser().parse_args()
def soft(x): return torch.softmax(x, -1)
def also(x): return torch.softmax(x, -1)
torch.set_default_dtype(torch.float64)
print("a table of results")
with open("results.csv", "a") as file:
    file.write("imported\\n")
os.chdir("/")
import no_such_plots
"""
SHADOWS = ("random", "torch", "numpy", "statistics", "triton", "pandas", "hydra")


@pytest.fixture
def here(tmp_path):
    """A folder of a user whose files are called as modules that the runner needs, each of which would end it."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    return tmp_path


def test_a_script_is_imported_once_and_its_rows_count_until_it_is_edited(run, here):
    (here / "script.py").write_text(SCRIPT)
    words = ("workload=softmax", "workload.rows=4", "workload.cols=8,16,32", "impl=file", *QUICK)
    result = run(*words, "impl.path=script.py:soft,script.py:also", "-m")
    assert result.code == 0, result.out + result.err
    assert (here / "results.csv").read_text() == "imported\n"
    metrics = [row["metrics"] for row in result.rows()]
    assert (len(metrics), {row["status"] for row in result.rows()}) == (6, {"ok"})
    assert all(row["import_s"] > 0 and "side_effects" not in row for row in metrics)
    text = " ".join(result.out.split())
    assert "importing script.py stopped in line 11, after soft was defined: ModuleNotFoundError" in text
    assert "importing script.py changed torch.get_default_dtype, the working folder, which was undone" in text
    assert "6 of 6 cases kept, 0 to run" in run("resume=last").out
    (here / "script.py").write_text(SCRIPT.replace("soft(x): return", "soft(x): return 1 *"))
    assert "0 of 6 cases kept, 6 to run" in run("resume=last").out


OWN = """import torch
from . import scale
from .parts.more import more
def inputs(rows=4): return (torch.rand(rows, 8),)
def reference(x): return more(scale.by(x))
def other(x): return scale.by(x) + 0
"""


def test_a_workload_in_a_package_is_imported_with_it_and_its_parts_count(run, here):
    package = here / "ops_x"
    (package / "parts").mkdir(parents=True)
    for name in ("__init__.py", "parts/__init__.py"):
        (package / name).write_text("")
    (package / "random.py").write_text("raise SystemExit('shadowed')\n")
    (package / "scale.py").write_text("import random\ndef by(x): return 2 * x\n")
    (package / "parts/more.py").write_text("def more(x): return x\n")
    (package / "rms_norm.py").write_text(OWN)
    named = ("impl=reference,file", "impl.path=ops_x.rms_norm:other", "workload.rows=4,8", "-m")
    result = run("workload=ops_x/rms_norm.py", *named, *QUICK)
    assert result.code == 0, result.out + result.err
    assert [row["status"] for row in result.rows()] == ["ok"] * 4
    assert "4 of 4 cases kept, 0 to run" in run("resume=last").out
    (package / "parts/more.py").write_text("def more(x): return x * 1\n")
    assert "0 of 4 cases kept, 4 to run" in run("resume=last").out


def test_a_kernel_in_a_package_imports_from_its_revision(run, tmp_path):
    package = tmp_path / "pack_y"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "k.py").write_text(
        "from .base import base\nfrom pack_y.base import NAME\ndef f(x, form): return base(x)\n"
    )
    base = "import torch\nNAME = 1\ndef base(x): return {}torch.nn.functional.gelu(x)\n"
    (package / "base.py").write_text(base.format("2 * "))
    git = ("git", "-c", "user.name=n", "-c", "user.email=e@x")
    for words in (("init", "-q"), ("add", "pack_y"), ("commit", "-qm", "wrong")):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    (package / "base.py").write_text(base.format(""))
    fields = ("workload=gelu", "workload.rows=2", "workload.cols=4", "workload.form=erf", *QUICK)
    result = run(*fields, "impl=file", "impl.path=pack_y.k:f", "impl.rev=HEAD,worktree", "-m")
    assert [row["status"] for row in result.rows()] == ["wrong", "ok"], result.out + result.err
