"""Options are found by path, and finding a workload loads no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from runner import options


@pytest.mark.parametrize("name", ["add", "gelu", "softmax", "matmul", "cdist", "mlp"])
def test_a_workload_is_found_by_its_file_name(name):
    assert options.find("models", name).__name__.lower() == name


def test_an_unknown_name_says_which_file_is_missing():
    with pytest.raises(LookupError, match=r"no file models/gleu\.py"):
        options.find("models", "gleu")


def test_a_helper_module_is_not_an_option():
    with pytest.raises(LookupError, match=r"no class called rounding in models/rounding\.py"):
        options.find("models", "rounding")


def test_a_name_that_is_no_identifier_is_no_option():
    assert not options.exists("runner.cli", "../run")
    assert not options.exists("runner.cli", "workload=x")


def test_workloads_and_measurements_load_without_torch():
    code = """
import sys
from runner import impl, options
for name in ("add", "gelu", "softmax", "matmul", "cdist", "mlp"):
    options.find("models", name)
for name in ("naive", "torch", "triton", "compiled", "cuda", "cudagraph", "file"):
    impl.find(name)
options.find("runner.measure", "benchmark")
options.find("runner.launch", "local")
options.find("runner.log", "wandb")
heavy = {"torch", "triton", "wandb", "pandas"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
