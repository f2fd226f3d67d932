"""``runner`` is a second name of the package ``kernel_runner``, unless a program has a ``runner`` of its own."""

from __future__ import annotations

import importlib
import os
import pickle
import pkgutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import kernel_runner.records.bad_input
import kernel_runner.records.case
import pytest

import kernel_runner
import runner
import runner.records.case as by_second_name
from runner.records.bad_input import BadInput

ROOT = Path(__file__).resolve().parents[2]

THREADS = """
import importlib, pkgutil, sys, threading
import kernel_runner, runner
names = [f"{package}.{module.name}" for package in ("records", "findings", "store")
         for module in pkgutil.iter_modules([f"{runner.__path__[0]}/{package}"])]
sys.setswitchinterval(1e-6)
errors = []

def load(top, order):
    for name in order:
        try:
            importlib.import_module(f"{top}.{name}")
        except BaseException as error:
            errors.append(error)

threads = [threading.Thread(target=load, args=(top, order)) for top in ("runner", "kernel_runner")
           for order in (names, names[::-1], names[1::2] + names[::2])]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not errors, errors
for name in names:
    module = sys.modules[f"kernel_runner.{name}"]
    assert module is sys.modules[f"runner.{name}"] and module.__spec__.name == module.__name__, name
"""

OWN = """
import runner
from runner.deep import scale
import torch
import kernel_runner
from kernel_runner.cli import main
assert runner.mine and kernel_runner.bench(scale, torch.ones(9), max_s=0.01).us > 0
sizes = ["workload.rows=8", "workload.cols=8", "device=cpu", "quick=true", "log=none", "output_dir=out"]
assert main(["workload=gelu", "impl=file", "impl.path=kernel/mine.py:f", *sizes]) == 0
assert sys.modules["runner"] is runner is not kernel_runner
"""
FILE = """
import torch
import runner.deep
from runner import mine
def f(x):
    from runner.deep import scale
    return torch.nn.functional.gelu(runner.deep.scale(scale(x)), approximate="tanh")
"""


def run(*words, folder):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "COLD": "1"}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_an_exception_raised_through_one_name_is_caught_through_the_other():
    with pytest.raises(BadInput):
        raise kernel_runner.records.bad_input.BadInput("a mistake")
    with pytest.raises(kernel_runner.records.bad_input.BadInput):
        raise BadInput("a mistake")


def test_a_module_is_one_however_it_is_imported():
    case = kernel_runner.records.case
    assert runner is kernel_runner is importlib.reload(runner)
    assert by_second_name is case is importlib.import_module("runner.records.case")
    assert case.__spec__.name == case.__name__ == "kernel_runner.records.case"
    choice = case.Choice("gelu", {})
    assert pickle.loads(pickle.dumps(choice)) == choice
    by_old_name = pickle.dumps(by_second_name.Choice, 0).replace(b"kernel_runner", b"runner")
    assert pickle.loads(by_old_name) is case.Choice
    for module in pkgutil.walk_packages(runner.records.__path__, "runner.records."):
        assert importlib.import_module(module.name) is importlib.import_module(f"kernel_{module.name}")


def test_a_module_that_does_not_exist_has_no_second_name_either():
    assert find_spec("runner.nothing") is None
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'runner\.nothing'"):
        importlib.import_module("runner.nothing")


def test_threads_may_import_it_by_both_names_at_once(tmp_path):
    assert run("-W", "error", "-c", THREADS, folder=tmp_path) == (0, "")


def test_python_runs_a_module_by_either_name(tmp_path):
    for name in ("runner", "kernel_runner"):
        assert run("-m", f"{name}.records.case", folder=tmp_path) == (0, "")
    assert "'runner.records' is a package and cannot be directly" in run("-m", "runner.records", folder=tmp_path)[1]


def test_the_plugin_for_pytest_has_one_name():
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    ((name, module),) = points.items()
    assert name == module == importlib.import_module(module).__name__


def test_a_program_may_have_a_runner_of_its_own_beside_bench_a_worker_and_a_file_that_imports_it(tmp_path):
    (tmp_path / "runner").mkdir()
    (tmp_path / "runner" / "__init__.py").write_text("mine = True\n")
    (tmp_path / "runner" / "deep.py").write_text("def scale(x):\n    return x\n")
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "mine.py").write_text(FILE)
    program = tmp_path / "program.py"
    program.write_text("import sys\n" + OWN)
    code, printed = run("program.py", folder=tmp_path)
    assert (code, "1 case: 1 ok" in printed) == (0, True), printed
    (rows,) = (tmp_path / "out").rglob("rows.jsonl")
    assert '"runner/deep.py":' in rows.read_text()
