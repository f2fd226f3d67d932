"""A user's .cu file through the runner: its arguments, files and revisions, and what it says without a GPU."""

from __future__ import annotations

import inspect
import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
import torch

from runner import config, implementations
from runner.kernels import cuda_build, cuda_device_code, cuda_function, cuda_nvrtc
from runner.kernels.unsupported import Unsupported
from runner.records.bad_input import BadInput
from runner.records.case import Choice
from runner.tasks import own_file

DOCS = Path(__file__).parents[2] / "docs" / "cuda-files.md"
KERNEL = """
#include <torch/extension.h>
#include "scale.cuh"
__global__ void twice(const float* x, float* y, int n) { y[threadIdx.x] = SCALE * x[threadIdx.x]; }
__global__ void thrice(const float* x, float* y, int n) { y[threadIdx.x] = 3 * x[threadIdx.x]; }
"""
LAUNCH = """
import torch
from runner import cuda_kernel
SHARED = dict(grid=1, arguments=lambda x, y: (x, y, x.numel()))
def inputs(n=8): return (torch.randn(n),)
def reference(x): return 2 * x
fused = cuda_kernel("k.cu", "twice", block=lambda threads: threads, threads=256, **SHARED)
other = cuda_kernel("k.cu", "thrice", block=32, **SHARED)
_hidden = cuda_kernel("other.cu", "f", block=32, **SHARED)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    files = {"k.cu": KERNEL, "scale.cuh": "#define SCALE 2\n", "k.py": LAUNCH, "unused.cu": "__global__ void f() {}\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_path_of_cuda_code_says_what_launches_it(folder):
    for path in ("k.cu", "mine/k.cu"):
        with pytest.raises(BadInput, match=f"{path} is not a Python file; .* a file that launches it by cuda_kernel"):
            config.plan(["workload=add", "impl=file", f"impl.path={path}:add"])


def test_its_own_words_are_arguments_known_before_anything_runs(folder):
    words = ["workload=gelu", "workload.cols=8", "impl=file", "impl.path=k.py:fused"]
    assert [case.impl_label for case in config.plan([*words, "impl.args.threads=64,128", "-m"]).cases] == [
        "file(path=k.py:fused, threads=64)", "file(path=k.py:fused, threads=128)",
    ]  # fmt: skip
    for unknown in ("threds", "block"):
        with pytest.raises(BadInput, match=unknown):
            config.plan([*words, f"impl.args.{unknown}=64"])
    with pytest.raises(BadInput, match=r"k\.py has no fuse; did you mean fused"):
        config.plan(["workload=gelu", "impl=file", "impl.path=k.py:fuse"])
    parameters = inspect.signature(cuda_function.cuda_kernel).parameters.values()
    assert {*own_file.LAUNCH} == {item.name for item in parameters if item.kind is item.KEYWORD_ONLY}


def test_each_is_an_implementation_of_a_workload_in_the_same_file(folder):
    assert own_file.read("k.py").implementations == ("reference", "fused", "other")
    (folder / "new.py").write_text(LAUNCH.replace("block=32, **SHARED)\n_hidden", "block=64, **SHARED)\n_hidden"))
    assert own_file.differs(Path("k.py"), Path("new.py"), ["other"])
    assert not own_file.differs(Path("k.py"), Path("new.py"), ["fused"])


def test_it_says_what_would_help_without_a_gpu(folder):
    function = implementations.build(Choice("file", {"path": "k.py:fused"})).load("gelu")
    assert list(inspect.signature(function).parameters) == ["x", "threads"]
    with pytest.raises(Unsupported, match="needs tensors on an NVIDIA GPU"):
        function(torch.ones(8))


def test_a_revision_has_its_own_files(folder, monkeypatch):
    for words in (["init", "-q"], ["add", "k.cu", "scale.cuh", "k.py"], ["commit", "-qm", "one"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=folder, check=True)
    (folder / "scale.cuh").write_text("#define SCALE 4\n")
    read = []
    monkeypatch.setattr(cuda_function, "kernel", lambda source, *_: read.append(source.read_text()))
    words = ["workload=gelu", "workload.cols=8", "impl=file", "impl.path=k.py:fused", "impl.rev=HEAD,worktree", "-m"]
    for case in config.plan(words).cases:
        with pytest.raises(AttributeError):  # there is no kernel to launch
            implementations.build(case.impl).load("gelu")(torch.ones(8))
    assert ["#define SCALE 2" in text for text in read] == [True, False]


def test_seconds_of_building_are_in_the_row(folder, monkeypatch):
    implementation = implementations.build(Choice("file", {"path": "k.py:fused"}))
    implementation.load("gelu")
    monkeypatch.setattr(cuda_build, "builds", [])
    with implementation.first_calls("gelu", "cuda") as report:
        cuda_build.builds.append(cuda_build.Build("twice", "nvrtc", 0.25, False, Path("k.cu"), "sm_90a", built=None))
    assert report.metrics == {"compile_s": 0.25, "compile_cached": False}


def test_the_pages_kernels_compile(tmp_path):
    pytest.importorskip("cuda.core")
    for name, text in re.findall(r"```\w+\n(?:#|//) (\S+)\n(.*?)```", DOCS.read_text(), re.DOTALL):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    kernels = {"my_add.cu": "add<double>", "sgemm/naive.cu": "naive", "sgemm/tiled.cu": "tiled<16>"}
    for file, kernel in {**kernels, "sgemm/coalesced.cu": "coalesced<32>"}.items():
        cuda_nvrtc.compiled(cuda_device_code.device_file(tmp_path / file, kernel), kernel, "sm_90a")


@pytest.mark.parametrize(
    ("header", "package"), [("curand_none.h", "nvidia-curand"), ("cub/none.cuh", "nvidia-cuda-cccl")]
)
def test_a_header_that_is_missing_is_told_with_its_package(tmp_path, header, package):
    pytest.importorskip("cuda.core")
    source = tmp_path / "k.cu"
    source.write_text(f"#include <{header}>\n__global__ void k() {{}}\n")
    with pytest.raises(Unsupported, match=f'^NVRTC finds no header "{header}"; pip install {package}'):
        cuda_nvrtc.compiled(source, "k", "sm_90a")


def test_it_is_a_public_name():
    assert import_module("runner").cuda_kernel is cuda_function.cuda_kernel
