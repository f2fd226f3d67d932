"""impl=cuda: its fields, its sources, and what it says of what it built. Needs no GPU."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from runner import implementations
from runner.kernels import cuda_build
from runner.records.bad_input import BadInput
from runner.records.case import Choice
from runner.subject.faults import classify


def cuda(build="nvrtc", variant="default"):
    return implementations.build(Choice("cuda", {"build": build, "variant": variant}))


def test_its_fields_are_checked_before_anything_runs():
    with pytest.raises(BadInput, match=r"impl\.build: 'nvcc' is not allowed; did you mean nvrtc"):
        cuda(build="nvcc")
    with pytest.raises(BadInput, match=r"impl\.variant: no such variant 'lectur'; did you mean lecture"):
        cuda(variant="lectur")


def test_an_operation_or_a_variant_that_is_not_there_is_known_without_loading_anything():
    assert cuda().missing("gelu") == ""
    assert cuda(variant="lecture").missing("gelu") == ""
    assert cuda(variant="lecture").missing("cdist") == "kernels/cdist has no variant lecture; it has default"
    assert cuda().missing("mlp") == "there is no kernels/mlp/cuda.py"


def test_its_sources_are_the_function_and_the_variants_own_file():
    names = {path.name for path in cuda(variant="lecture").sources("gelu")}
    assert names == {"cuda.py", "gelu_lecture.cu"}
    assert cuda().kept_on_disk("gelu")
    assert not cuda().kept_on_disk("mlp")


@pytest.mark.parametrize("op", ["gelu", "matmul", "cdist"])
def test_its_fields_are_arguments_of_every_function(op):
    parameters = inspect.signature(cuda().load(op)).parameters
    assert parameters["build"].default == "nvrtc"
    assert parameters["variant"].default == "default"


def test_build_seconds_are_those_of_this_case_alone(monkeypatch):
    def build(name, seconds, cached):
        return cuda_build.Build(name, "nvrtc", seconds, cached, Path("one.cu"), "sm_90a", built=None)

    monkeypatch.setattr(cuda_build, "builds", [build("before", 9.0, cached=False)])
    with cuda().first_calls("gelu", "cuda") as report:
        cuda_build.builds.append(build("one", 0.25, cached=False))
        cuda_build.builds.append(build("two", 0.5, cached=True))
    assert report.metrics == {"compile_s": 0.75, "compile_cached": False}
    with cuda().first_calls("gelu", "cuda") as report:
        pass
    assert report.metrics == {"compile_s": 0, "compile_cached": True}


def test_a_source_that_does_not_compile_is_build_failed():
    fault = classify(cuda_build.BuildFailed("NVRTC: gelu for sm_90a: gelu.cu(3): error: no\nmore"), "build")
    assert (fault.status, fault.reason) == (
        "build_failed",
        "BuildFailed: NVRTC: gelu for sm_90a: gelu.cu(3): error: no",
    )


def test_every_source_is_of_an_operation_that_has_a_function():
    for path in Path(cuda_build.__file__).parent.glob("*/*.cu"):
        assert (path.parent / "cuda.py").is_file(), path
