"""Options are found by path, and finding a workload loads no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from runner.experiment import schema


@pytest.mark.parametrize(
    "name", ["add", "square", "reduce_sum", "reduce_max", "argmax", "norm", "gelu", "softmax", "matmul", "cdist", "mlp"]
)
def test_a_workload_is_found_by_its_file_name(name):
    assert schema.find("runner.models", name).__name__.lower() == name.replace("_", "")


def test_an_unknown_name_says_which_file_is_missing():
    with pytest.raises(LookupError, match=r"no file runner/models/gleu\.py"):
        schema.find("runner.models", "gleu")


def test_a_helper_module_is_not_an_option():
    with pytest.raises(LookupError, match=r"no class called rounding in runner/models/rounding\.py"):
        schema.find("runner.models", "rounding")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """``package(source)`` makes a package whose module ``mine`` has that source, and returns its name."""

    def make(source):
        folder = tmp_path / f"own_{tmp_path.name}"
        folder.mkdir()
        (folder / "mine.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
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
    with pytest.raises(LookupError, match=rf"^class Mine in {name}/mine\.py {wrong}$"):
        schema.find(name, "mine")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("\nrows: Size =\n", r", line 2: SyntaxError: .+"),
        ("import nowhere\n", ": ModuleNotFoundError: No module named .+"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named(source, why, package):
    name = package(source)
    with pytest.raises(LookupError, match=rf"^{name}/mine\.py{why}$"):
        schema.find(name, "mine")


def test_a_class_without_a_required_method_is_named():
    with pytest.raises(LookupError, match=r"^class \w+ in runner/report/wandb\.py must also have shout$"):
        schema.find("runner.report", "wandb", "publish", "shout")


def test_a_name_that_is_no_identifier_is_no_option():
    assert not schema.exists("runner.cli", "../run")
    assert not schema.exists("runner.cli", "workload=x")


def test_workloads_and_measurements_load_without_torch():
    code = """
import sys
from runner import implementations
from runner.experiment import schema
for name in schema.names("runner.models"):
    if (schema.CONF / "workload" / f"{name}.yaml").exists():
        schema.find("runner.models", name)
for name in ("naive", "torch", "triton", "compiled", "cuda", "cudagraph", "file"):
    implementations.find(name)
schema.find("runner.measure", "benchmark")
schema.find("runner.execute", "local")
schema.find("runner.report", "wandb")
heavy = {"torch", "triton", "wandb", "pandas"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
