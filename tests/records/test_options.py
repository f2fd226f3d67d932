"""Options are found by path, and finding a workload loads no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kernel_runner
from runner.records.options import CONF, has_option, option_class


@pytest.mark.parametrize("name", [path.stem for path in CONF.glob("workload/*.yaml")])
def test_a_workload_is_found_by_its_file_name(name):
    assert option_class("models", name).__name__.lower() == name.replace("_", "")


def test_an_unknown_name_says_which_file_is_missing():
    with pytest.raises(LookupError, match=r"no file runner/models/gleu\.py"):
        option_class("models", "gleu")


def test_a_helper_module_is_not_an_option():
    with pytest.raises(LookupError, match=r"no class called rounding in runner/models/rounding\.py"):
        option_class("models", "rounding")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """``package(source)`` makes a package with the module ``mine``, which has that source, and returns its name."""

    def make(source):
        folder = tmp_path / f"own_{tmp_path.name}"
        folder.mkdir()
        (folder / "mine.py").write_text(source)
        monkeypatch.setattr(kernel_runner, "__path__", [*kernel_runner.__path__, str(tmp_path)])
        return folder.name

    return make


PLAIN = "class Mine:\n    pass\n"
INHERITED = """
from dataclasses import dataclass
from runner.models.workload import Workload
class Mine(Workload):
    rows: int
"""
UNFINISHED = INHERITED.replace("class Mine", "@dataclass(frozen=True, kw_only=True)\nclass Mine")


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        (PLAIN, "must be a dataclass whose fields are those of its YAML"),
        (INHERITED, "must be a dataclass whose fields are those of its YAML"),
        (UNFINISHED, "must also have bytes_min, flops, inputs, reference"),
    ],
)
def test_a_class_without_its_own_dataclass_fields_is_named(source, wrong, package):
    name = package(source)
    with pytest.raises(LookupError, match=rf"^class Mine in runner/{name}/mine\.py {wrong}$"):
        option_class(name, "mine")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("\nrows: Size =\n", r", line 2: SyntaxError: .+"),
        ("import nowhere\n", ": ModuleNotFoundError: No module named .+"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named(source, why, package):
    name = package(source)
    with pytest.raises(LookupError, match=rf"^runner/{name}/mine\.py{why}$"):
        option_class(name, "mine")


def test_a_class_without_a_required_method_is_named():
    with pytest.raises(LookupError, match=r"^class \w+ in runner/report/wandb\.py must also have shout$"):
        option_class("report", "wandb", "publish", "shout")


def test_a_name_that_is_no_identifier_is_no_option():
    assert not has_option("cli", "../run")
    assert not has_option("cli", "workload=x")


def test_workloads_and_measurements_load_without_torch():
    code = """
import sys
from runner import implementations
from runner.records.options import CONF, option_class, option_names
for name in option_names("models"):
    if (CONF / "workload" / f"{name}.yaml").exists():
        option_class("models", name)
for name in ("naive", "torch", "triton", "compiled", "cuda", "cudagraph", "file"):
    implementations.implementation_class(name)
option_class("measure", "benchmark")
option_class("execute", "local")
option_class("report", "wandb")
heavy = {"torch", "triton", "wandb", "pandas"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
