"""The builders of CUDA C++: what they cache, when they build again, and what they say if something is missing."""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils import cpp_extension

from runner.kernels import cuda_build, cuda_cache, cuda_extension, cuda_nvrtc, cuda_sources
from runner.kernels.unsupported import Unsupported

SOURCE = '#include "more.cuh"\ntemplate <typename T> __global__ void fill(T* x) { x[0] = T(VALUE); }\n'


@pytest.fixture
def source(tmp_path):
    (tmp_path / "more.cuh").write_text("#define VALUE 1\n")
    (tmp_path / "fill.cu").write_text(SOURCE)
    return tmp_path / "fill.cu"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernel-runner" / "cuda"


class FakeNvrtc:
    """Stands in for cuda.core and cuda.bindings, so that the cache is tested without NVRTC too.

    It records the kernels that are compiled. If ``error`` is set, compiling raises it.
    """

    def __init__(self, monkeypatch):
        self.kernels, self.error, self.version = [], None, (13, 0)
        parts = {
            "cuda": SimpleNamespace(),
            "cuda.bindings": SimpleNamespace(nvrtc=SimpleNamespace(nvrtcVersion=lambda: (0, *self.version))),
            "cuda.core": SimpleNamespace(
                ObjectCode=None, Program=self.program, ProgramOptions=SimpleNamespace, launch=None
            ),
        }
        for name, module in parts.items():
            monkeypatch.setitem(sys.modules, name, module)

    def program(self, text, language, options):
        return SimpleNamespace(compile=self.compile)

    def compile(self, target, name_expressions):
        if self.error is not None:
            raise self.error
        self.kernels += name_expressions
        return SimpleNamespace(symbol_mapping=dict.fromkeys(name_expressions, b"symbol"), code=b"\x7fELF")


@pytest.fixture
def nvrtc(monkeypatch):
    return FakeNvrtc(monkeypatch)


def test_a_kernel_is_compiled_once_and_then_found_on_disk(source, nvrtc):
    assert cuda_nvrtc.compiled(source, "fill<int>", "sm_80") == ("symbol", b"\x7fELF", False)
    assert cuda_nvrtc.compiled(source, "fill<int>", "sm_80") == ("symbol", b"\x7fELF", True)
    assert nvrtc.kernels == ["fill<int>"]


@pytest.mark.parametrize("what", ["source", "include", "kernel", "arch", "flags", "version"])
def test_whatever_shapes_a_cubin_is_part_of_its_name(source, nvrtc, monkeypatch, what):
    cuda_nvrtc.compiled(source, "fill<int>", "sm_80")
    kernel, arch = "fill<int>", "sm_80"
    if what == "source":
        source.write_text(SOURCE + "// another\n")
    elif what == "include":
        (source.parent / "more.cuh").write_text("#define VALUE 2\n")
    elif what == "kernel":
        kernel = "fill<float>"
    elif what == "arch":
        arch = "sm_90a"
    elif what == "flags":
        monkeypatch.setitem(cuda_nvrtc.FLAGS, "std", "c++20")
    else:
        nvrtc.version = (13, 1)
    assert not cuda_nvrtc.compiled(source, kernel, arch)[2]
    assert len(nvrtc.kernels) == 2


@pytest.mark.parametrize("torn", [lambda whole: whole[:-1], lambda whole: b"", lambda whole: whole[:-1] + b"?"])
def test_a_torn_file_is_built_again(source, nvrtc, cache, torn):
    cuda_nvrtc.compiled(source, "fill<int>", "sm_80")
    (file,) = cache.iterdir()
    file.write_bytes(torn(file.read_bytes()))
    assert not cuda_nvrtc.compiled(source, "fill<int>", "sm_80")[2]
    assert cuda_nvrtc.compiled(source, "fill<int>", "sm_80")[2]


def test_what_is_kept_is_for_this_user_alone(source, nvrtc, cache):
    cache.mkdir(parents=True, mode=0o755)
    cuda_nvrtc.compiled(source, "fill<int>", "sm_80")
    (file,) = cache.iterdir()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_code_in_another_users_folder_is_neither_read_nor_written(source, nvrtc, cache, monkeypatch):
    cuda_nvrtc.compiled(source, "fill<int>", "sm_80")
    before = sorted(cache.iterdir())
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert not cuda_nvrtc.compiled(source, "fill<int>", "sm_80")[2]
    assert not cuda_nvrtc.compiled(source, "fill<float>", "sm_80")[2]
    assert sorted(cache.iterdir()) == before


def test_without_a_place_to_keep_it_a_kernel_is_compiled_all_the_same(source, nvrtc, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cuda_nvrtc.compiled(source, "fill<int>", "sm_80") == ("symbol", b"\x7fELF", False)


def test_includes_are_followed_beside_the_file_and_in_the_headers(tmp_path):
    for name, text in {
        "a.cu": '#include "b.cuh"\n',
        "b.cuh": " # include <c.h>\n",
        "h/c.h": '#include "a.cu"\n',
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cuda_sources.closure(tmp_path / "a.cu", ()) == [tmp_path / "a.cu", tmp_path / "b.cuh"]
    assert len(cuda_sources.closure(tmp_path / "a.cu", [tmp_path / "h"])) == 3


def test_variants_are_the_files_there_are():
    here = Path(cuda_build.__file__).parent
    assert list(cuda_sources.variants(here / "gelu")) == ["default", "lecture"]
    assert list(cuda_sources.variants(here / "mlp")) == []
    with pytest.raises(Unsupported, match=r"kernels/gelu has no variant fast in CUDA C\+\+; it has default, lecture"):
        cuda_build.source(str(here / "gelu" / "cuda.py"), "fast")


@pytest.mark.parametrize("op", ["gelu", "matmul", "cdist"])
def test_on_a_cpu_it_says_what_would_help(make, op):
    from importlib import import_module

    shape = {"gelu": {"rows": 2, "cols": 2, "form": "erf"}, "matmul": {"size": 1, "m": 2, "n": 2, "k": 2}}
    workload, inputs = make(op, dtype="float32", **shape.get(op, {"n": 2, "m": 2, "d": 2, "p": 2}))
    with pytest.raises(
        Unsupported, match="needs tensors on an NVIDIA GPU; to compile this kernel without one: measure=inspect"
    ):
        workload.call(getattr(import_module(f"runner.kernels.{op}.cuda"), op), inputs).run()


def test_without_cuda_core_it_says_what_to_install(source, monkeypatch):
    for name in ("cuda", "cuda.bindings", "cuda.core"):  # another test may have imported them
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Unsupported, match=r'pip install "cuda-core\[cu13\]".*or use build=extension'):
        cuda_nvrtc.compiled(source, "fill<int>", "sm_80")


def test_without_nvrtc_it_says_what_to_install(source, nvrtc, monkeypatch):
    def fails():
        raise OSError("libnvrtc.so.13")

    monkeypatch.setattr(sys.modules["cuda.bindings"].nvrtc, "nvrtcVersion", fails)
    with pytest.raises(Unsupported, match="the library NVRTC is not found"):
        cuda_nvrtc.compiled(source, "fill<int>", "sm_80")


def test_a_mistake_in_a_source_is_told_by_its_line(source):
    pytest.importorskip("cuda.core")
    source.write_text(SOURCE.replace("T(VALUE)", "T(VALUES)"))
    with pytest.raises(cuda_build.BuildFailed, match=r'^NVRTC: fill<int> for sm_80: fill\.cu\(2\): error: .*"VALUES"'):
        cuda_nvrtc.compiled(source, "fill<int>", "sm_80")


def test_a_gpu_that_nvrtc_does_not_know_is_unsupported(source):
    pytest.importorskip("cuda.core")
    with pytest.raises(
        Unsupported, match=r"NVRTC \d+\.\d+ cannot compile for sm_20; install an nvidia-cuda-nvrtc that can"
    ):
        cuda_nvrtc.compiled(source, "fill<int>", "sm_20")


def test_without_headers_it_says_where_they_come_from(source, monkeypatch):
    pytest.importorskip("cuda.core")
    source.write_text("#include <cuda_fp16.h>\n__global__ void fill() {}\n")
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: path.name != "cuda_runtime_api.h" and is_file(path))
    with pytest.raises(Unsupported, match="pip install nvidia-cuda-runtime, or set CUDA_HOME"):
        cuda_nvrtc.compiled(source, "fill", "sm_80")


def test_an_extension_says_all_that_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert cuda_extension.missing() == (
        "build=extension needs nvcc (install the CUDA toolkit, and set CUDA_HOME to it) and a C++ compiler "
        "(install g++) and ninja (pip install ninja); build=nvrtc needs none of these"
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/bin/true")
    assert cuda_extension.missing().startswith(f"build=extension needs cuda_runtime.h (CUDA_HOME is {tmp_path}, an")


def toolkit(folder, version):
    """A folder with an nvcc that only knows its version."""
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\necho {version}\n")
    nvcc.chmod(0o700)
    (folder / "include").mkdir()
    (folder / "include" / "cuda_runtime.h").touch()
    return str(folder)


@pytest.fixture
def extension(monkeypatch, tmp_path):
    """Names of the extensions that were built: nvcc does nothing, and the library that it leaves cannot be run."""
    built = []

    def load_inline(name, build_directory, **_):
        built.append(name)
        Path(build_directory, f"{name}.so").write_bytes(b"code")
        return types.ModuleType(name)

    monkeypatch.setattr(cpp_extension, "load_inline", load_inline)
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", toolkit(tmp_path / "cuda-13.0", "13.0"))
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/bin/true")
    monkeypatch.setattr(importlib.util, "module_from_spec", lambda spec: types.ModuleType(spec.name))
    return built


def test_an_extension_is_built_once_and_then_found_on_disk(source, extension, cache):
    assert [cuda_extension.build(source, "fill<int>", "sm_80", 0)[1] for _ in range(3)] == [False, True, True]
    assert len(extension) == 1
    (folder,) = cache.iterdir()  # and nothing of the build is left behind
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / f"{folder.name}.so").write_bytes(b"cod")
    assert not cuda_extension.build(source, "fill<int>", "sm_80", 0)[1]
    assert cuda_extension.build(source, "fill<int>", "sm_80", 0)[1]


def test_whatever_shapes_an_extension_is_part_of_its_name(source, extension, monkeypatch, tmp_path):
    def build(kernel="fill<int>", arch="sm_80"):
        return cuda_extension.build(source, kernel, arch, 0)[1]

    assert [build(), build("fill<float>"), build(arch="sm_90a")] == [False] * 3
    (source.parent / "more.cuh").write_text("#define VALUE 2\n")
    assert not build()
    cuda_extension.FLAGS.append("-O2")
    try:
        assert not build()
    finally:
        cuda_extension.FLAGS.remove("-O2")
    assert build()
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", toolkit(tmp_path / "cuda-13.1", "13.1"))
    assert not build()
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert not build()
    assert build()


def test_a_compiler_that_refuses_is_told_by_its_first_error(source, extension, monkeypatch):
    def load_inline(*_, **__):
        raise RuntimeError("Error building extension 'fill'\nfill.cu(2): error: no such thing\nninja: build stopped\n")

    monkeypatch.setattr(cpp_extension, "load_inline", load_inline)
    with pytest.raises(cuda_build.BuildFailed, match=r"^nvcc: fill<int> for sm_80: fill.cu\(2\): error: no such thing"):
        cuda_extension.build(source, "fill<int>", "sm_80", 0)


def test_nothing_is_kept_where_the_disk_will_not_have_it(cache, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    cuda_cache.folder()
    monkeypatch.setattr(os, "replace", full)
    cuda_cache.write("name", {}, b"code")
    assert not list(cache.iterdir())
    assert cuda_cache.read("name") is None
