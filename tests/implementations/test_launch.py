"""A user's own kernel in CUDA C++: its launch in a YAML file, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from runner import config, implementations
from runner.experiment.case import Choice
from runner.experiment.schema import BadInput
from runner.implementations import launch
from runner.kernels import cuda_nvrtc
from runner.kernels.unsupported import Unsupported

DOCS = Path(__file__).parents[2] / "docs" / "adding.md"
PLAIN = {"grid": 1, "block": 32, "arguments": "[x, y]"}
ADD = ["workload=add", "workload.cols=64", "device=cpu"]


def written(folder, **fields):
    path = folder / "k.yaml"
    path.write_text("\n".join(f"{name}: {value}" for name, value in {**PLAIN, **fields}.items()))
    (folder / "k.cu").write_text("__global__ void f(const float* x, float* y) {}\n")
    launch.read.cache_clear()
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ceil(x.numel / 256)", 2),
        ("x.shape[0] * x.stride[0] - x.shape[-1] + 2", 302),
        ("-7 // 2 + 9 % 4 + min(rows, 3, 5)", 0),
        ("max(2.5, n) * 2", 5),
        (7, 7),
    ],
)
def test_an_expression_has_the_value_that_python_gives_it(tmp_path, text, value):
    found = launch.read(written(tmp_path, shared=text))
    assert launch.lay_out(found, {"x": torch.empty(4, 100)}, {"n": 1, "rows": 3}).shared == value


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        (
            {"grid": "__import__('os')"},
            r"grid: __import__\('os'\): __import__\('os'\) is not allowed; there",
        ),
        ({"grid": "x.data_ptr"}, "grid: x.data_ptr: x.data_ptr is not allowed"),
        ({"grid": "2 ** 99"}, "grid: 2 .. 99: 2 .. 99 is not allowed"),
        ({"block": "[1, 1, 1, 1]"}, "block: .* is not allowed; give one to three numbers"),
        ({"shared": "'1 +'"}, "1 .: cannot be read"),
        ({"threads": 1}, "threads: no such field; "),
        ({"dtype": "int8"}, "dtype: 'int8' is not allowed; "),
    ],
)
def test_what_a_launch_may_not_say_is_refused_in_one_line(tmp_path, fields, answer):
    written(tmp_path, **fields)
    with pytest.raises(BadInput, match=f"k.yaml: {answer}"):
        config.plan([*ADD, "impl=cuda", f"impl.path={tmp_path}/k.cu:f"])


def test_what_cannot_be_computed_is_an_error_that_names_it(tmp_path):
    for text, answer in (("n / 2", "is 0.5, not a whole number; write ceil"), ("x.shape[5]", "cannot be computed")):
        found = launch.read(written(tmp_path, shared=text))
        with pytest.raises(ValueError, match=answer):
            launch.lay_out(found, {"x": torch.empty(4)}, {"n": 1})


def test_a_name_that_the_workload_lacks_is_known_without_loading_anything(tmp_path):
    written(tmp_path, grid="ceil(x.numel / threads)", args="{threads: 256}")
    cuda = implementations.build(Choice("cuda", {"build": "nvrtc", "variant": "default", "path": f"{tmp_path}/k.cu:f"}))
    assert cuda.missing("softmax") == ""
    assert cuda.missing("add").endswith(
        "k.yaml: grid: ceil(x.numel / threads): no such name x; one of: a, b, threads, y"
    )
    assert "tensors: missing; name those of mlp in order" in cuda.missing("mlp")
    assert cuda.arguments("softmax") == ["threads"]
    assert {path.name for path in cuda.sources("softmax")} == {"cuda.py", "launch.py", "k.cu", "k.yaml"}
    with pytest.raises(Unsupported, match="runs on NVIDIA GPUs only"):
        cuda.load("softmax")(torch.zeros(4, 4))
    with pytest.raises(Unsupported, match=r"k\.cu takes float32, not float64"):
        cuda.load("softmax")(torch.zeros(4, 4, dtype=torch.float64))


def test_a_path_goes_to_the_implementation_of_its_language(tmp_path):
    written(tmp_path, arguments="[a, b, y]")
    (tmp_path / "k.py").write_text("def f(a, b): return a + b\n")
    paths = f"impl.path={tmp_path}/k.py:f,{tmp_path}/k.cu:f"
    cases = config.plan([*ADD, "impl=torch,file,cuda", paths, "-m"]).cases
    assert [(case.impl.name, str(case.impl.fields.get("path", ""))[-6:]) for case in cases] == [
        ("torch", ""), ("file", "k.py:f"), ("cuda", "k.cu:f"),
    ]  # fmt: skip
    alone = config.plan([*ADD, "impl=cuda,file", f"impl.path={tmp_path}/k.py:f", "-m"]).cases
    assert alone[0].impl.to_record() == {"name": "cuda", "build": "nvrtc", "variant": "default"}
    with pytest.raises(BadInput, match="no implementation here takes it"):
        config.plan([*ADD, "impl=file", paths, "-m"])


def test_the_example_of_the_docs_compiles_and_is_laid_out(tmp_path):
    blocks = DOCS.read_text().split("```")
    source, text = (next(one for one in blocks if first in one) for first in ("// my_add.cu", "# my_add.yaml"))
    (tmp_path / "my_add.yaml").write_text(text.partition("\n")[2])
    (tmp_path / "my_add.cu").write_text(source.partition("\n")[2])
    found = launch.read(tmp_path / "my_add.yaml")
    tensors = {name: torch.empty(10, 100) for name in "ab"}
    assert launch.lay_out(found, tensors, {"threads": 256}) == launch.Layout(
        (4, 1, 1), (256, 1, 1), 0, ("a", "b", "y", 1000), (10, 100)
    )
    pytest.importorskip("cuda.core")
    for kernel in ("add<float>", "add<double>"):
        symbol, _, _ = cuda_nvrtc.compiled(tmp_path / "my_add.cu", kernel, "sm_90a")
        assert "add" in symbol
