"""``cuda_kernel``: what a launch passes to the kernel, without a GPU. ``test_cuda_files`` runs on one."""

from __future__ import annotations

import ctypes
import inspect
import re

import pytest
import torch

from runner.kernels import cuda_function
from runner.kernels.unsupported import Unsupported

TEXT = """
template <typename T, int BLOCK>
__global__ void f(const T* x, T* y, int n, float alpha, double beta, bool on, long long many, half scale, void* none) {}
__global__ void g(const float* x, float* y) {}
"""
SYMBOL = "_Z1fIfLi64EEvPKT_PS0_ifdbx6__halfPv"
PLAIN = {"grid": 1, "block": 32, "arguments": lambda x, y: (x, y)}


class Launched:
    """Stands in for a kernel that is built."""

    def __init__(self, symbol="_Z1gPKfPf"):
        self.symbol, self.calls, self.names = symbol, [], []

    def __call__(self, grid, block, *arguments, **options):
        addresses = tuple(word.data_ptr() if isinstance(word, torch.Tensor) else word for word in arguments)
        self.calls.append((grid, block, addresses, options))

    def built(self, source, name, builder, device):
        self.names.append((name, builder, source.read_text()))
        return self


@pytest.fixture
def launched(monkeypatch):
    made = Launched()
    monkeypatch.setattr(cuda_function, "kernel", made.built)
    return made


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Return a function that makes one by ``cuda_kernel`` of ``k.cu``, beside which its caller lies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "k.cu").write_text(TEXT)

    def make(name="g", **fields):
        scope = {"__file__": str(tmp_path / "k.py"), "fields": {**PLAIN, **fields}, "cuda": cuda_function}
        return eval(f"cuda.cuda_kernel('k.cu', {name!r}, **fields)", scope)

    return make


def test_numbers_get_the_types_of_the_kernels_own_parameters(launched, made):
    launched.symbol = SYMBOL
    f = made(
        "f<{T}, {threads}>",
        grid=lambda x, threads: (-(-x.numel() // threads), 2),
        block=lambda threads: threads,
        shared=lambda x: 4 * x.shape[0],
        arguments=lambda x, y, *, alpha: (x, y, x.numel(), alpha, 0.1, True, 2**40, 0.5, None),
        threads=64,
    )
    x = torch.randn(100)
    y = f(x, alpha=2)
    ((grid, block, arguments, options),) = launched.calls
    assert (grid, block, options) == ((2, 2, 1), (64, 1, 1), {"shared": 400, "cooperative": False})
    assert arguments[:2] == (x.data_ptr(), y.data_ptr())
    assert [(type(item), item.value) for item in arguments[2:8]] == [
        (ctypes.c_int32, 100), (ctypes.c_float, 2.0), (ctypes.c_double, 0.1), (ctypes.c_bool, True),
        (ctypes.c_int64, 2**40), (ctypes.c_uint16, 0x3800),
    ]  # fmt: skip
    assert arguments[8] == 0
    assert launched.names[0][:2] == ("f<float, 64>", "nvrtc")
    assert "void g" not in launched.names[0][2]
    assert str(inspect.signature(f)) == "(x, *, alpha, threads=64)"
    assert f.__name__ == "f"


@pytest.mark.parametrize(
    ("kind", "value", "answer"),
    [
        ("int", 2**31, "2147483648 is not a value of that type"),
        ("int", 2.5, "2.5 is not a value"),
        ("unsigned int", -1, "-1 is not a value"),
        ("float", torch.ones(()), r"Tensor is not a number; give one, as in x.shape\[0\] or x.item\(\)"),
        ("float", None, "NoneType is not a number"),
        ("dim3", 1, "a kernel with such a parameter cannot be launched from here"),
        ("dim3", (1, 2), "a kernel with such a parameter cannot be launched from here"),
    ],
)
def test_what_does_not_fit_a_parameter_is_refused_before_the_launch(kind, value, answer):
    with pytest.raises(ValueError, match=f"^f: argument 1, {kind}: {answer}"):
        cuda_function._packed("f", (kind,), (value,), torch.device("cpu"))


@pytest.mark.parametrize(
    ("kind", "dtypes"),
    [
        ("float const*", "float32"),
        ("float4*", "float32"),
        ("float2*", "float32 complex64"),
        ("__half2 const*", "float16"),
        ("__nv_bfloat162*", "bfloat16"),
        ("unsigned char*", "uint8 bool"),
        ("uint4*", "uint32 int32"),
        ("long*", "int64"),
        ("void*", ""),
        ("Point*", ""),
        ("float const* const*", ""),
    ],
)
def test_a_pointer_takes_tensors_of_its_dtype_alone(kind, dtypes):
    assert cuda_function._dtypes(kind) == tuple(dtypes.split())


def test_a_tensor_of_another_dtype_is_unsupported_and_nothing_is_launched(launched, made):
    with pytest.raises(
        Unsupported, match=r"^g: argument 1, float const\*: the tensor is float16, and the kernel takes"
    ):
        made()(torch.ones(4).half())
    with pytest.raises(ValueError, match=r"^g: arguments gives 3; the kernel takes 2: float const\*, float\*$"):
        made(arguments=lambda x, y: (x, y, 1))(torch.ones(4))
    with pytest.raises(ValueError, match=r"^g: argument 2, float\*: 0.5 is not a tensor"):
        made(arguments=lambda x, y: (x, 0.5))(torch.ones(4))
    assert not launched.calls


@pytest.mark.parametrize("view", [lambda x: x.t(), lambda x: x[:, 1:], lambda x: x.flatten()[1:]])
def test_the_kernel_gets_contiguous_and_aligned_tensors(launched, made, view):
    x = view(torch.randn(8, 8))
    before = x.clone()
    pointers = []
    f = made(arguments=lambda x, y: pointers.append((x, y)) or (x, y))
    y = f(x)
    ((given, result),) = pointers
    assert given.is_contiguous()
    assert given.data_ptr() % 16 == 0
    assert torch.equal(given, x)
    assert result is y
    assert y.shape == x.shape
    assert torch.equal(x, before)


def test_a_result_that_the_caller_gives_is_written_and_returned(launched, made, monkeypatch):
    g = made(arguments=lambda x, y, n: (x, y), result="y", grid=lambda n: n)
    x, y = torch.ones(4), torch.zeros(4)
    assert g(x, y, 4) is y
    assert launched.calls[0][2] == (x.data_ptr(), y.data_ptr())
    strided = torch.zeros(4, 2)[:, 0]
    monkeypatch.setattr(Launched, "__call__", lambda self, *rest, **options: seen[-1].fill_(3))
    seen = []
    assert made(arguments=lambda x, y: seen.append(y) or (x, y), result="y")(x, strided) is strided
    assert strided.tolist() == [3] * 4
    both = made(arguments=lambda x, y: (x, y), result="x, y")(seen[-1], y)
    assert both[0] is seen[-1]
    assert both[1] is y


def test_a_default_of_an_option_of_the_workload_is_kept(launched, made):
    launched.symbol = "_Z1gPKfPfff"
    g = made(arguments=lambda x, y, *, eps=0.5, by: (x, y, eps, by), by=2.0)
    h = made(arguments=lambda x, y, *, eps=0.5, by: (x, y, eps, by))
    assert str(inspect.signature(g)) == "(x, *, eps=0.5, by=2.0)"
    x = torch.ones(4)
    g(x), g(x, eps=0.25), h(x, by=1), h(x, eps=0.125, by=1)
    assert [[word.value for word in call[2][2:]] for call in launched.calls] == [
        [0.5, 2.0], [0.25, 2.0], [0.5, 1.0], [0.125, 1.0],
    ]  # fmt: skip
    with pytest.raises(TypeError, match="missing a required"):
        h(x)


def test_a_result_may_be_made_and_may_be_several(launched, made):
    g = made(result=lambda x: (x.new_zeros(2), x.new_ones(3)), arguments=lambda x, parts: (x, parts[1]))
    first, second = g(torch.ones(4))
    assert (first.tolist(), second.tolist()) == ([0, 0], [1, 1, 1])
    assert launched.calls[0][2][1] == second.data_ptr()


def test_an_empty_grid_launches_nothing(launched, made):
    assert made(grid=lambda x: x.numel())(torch.empty(0)).shape == (0,)
    assert not launched.calls


def test_what_a_launch_lacks_is_told_where_it_is_defined(made, launched):
    with pytest.raises(ValueError, match=r"^cuda_kernel\(g\): grid: no parameter z; it has x, y$"):
        made(grid=lambda z: 1)
    with pytest.raises(ValueError, match=r"^cuda_kernel\(g\): result: no parameter y; it has x$"):
        made(result=lambda y: y)
    with pytest.raises(ValueError, match=r"^cuda_kernel\(g\): result: no parameter z; it has x, y$"):
        made(result="z")
    with pytest.raises(ValueError, match=r"^cuda_kernel\(g\): arguments has no parameters; write them"):
        made(arguments=lambda: ())
    assert made(grid=[1, 2], block=(32,))(torch.ones(4)).shape == (4,)
    with pytest.raises(ValueError, match=r"^g: grid is 2.5; give one to three whole numbers, as in -\(-n // 256\)$"):
        made(grid=2.5)(torch.ones(4))
    with pytest.raises(ValueError, match=r"^g<\{N\}>: N is neither an option of cuda_kernel nor T"):
        made("g<{N}>")(torch.ones(4))
    last = "y, the last parameter of arguments, is the result, or a tuple of them$"
    with pytest.raises(TypeError, match=rf"^g\(x\): missing a required argument: 'x'; {last}"):
        made()()


@pytest.mark.parametrize(
    ("launch", "reason"),
    [
        ({"block": 2048}, "block is 2048; a GPU takes at most (1024, 1024, 64) along x, y and z"),
        ({"block": (64, 32)}, "block is (64, 32), 2048 threads; a GPU runs at most 1024 in a block"),
        ({"grid": (1, 65536)}, "grid is (1, 65536); a GPU takes at most (2147483647, 65535, 65535) along x, y and z"),
    ],
)
def test_more_than_a_gpu_launches_is_told(made, launched, launch, reason):
    with pytest.raises(ValueError, match=f"^{re.escape(f'g: {reason}')}$"):
        made(**launch)(torch.ones(4))
    assert not launched.calls


def test_an_option_may_be_called_as_the_type(launched, made):
    made("g<{T}>", T=64)(torch.ones(4))
    assert cuda_function._filled("g<{T}>", torch.float32, (None,)) == "g<float>"
    assert cuda_function._filled("g<{T}>", torch.float32, ("64",)) == "g<64>"


def test_a_gradient_is_refused_and_not_lost(launched, made):
    x = torch.ones(4, requires_grad=True)
    with pytest.raises(Unsupported, match=r"^g has no backward; call it under torch.no_grad\(\)"):
        made()(x)
    with torch.no_grad():
        made()(x)
    assert len(launched.calls) == 1


def test_an_edit_counts_once_the_function_is_made_again(launched, made, tmp_path):
    made()(torch.ones(4))
    (tmp_path / "k.cu").write_text("__global__ void g(const float* x, float* y) { y[0] = 7; }")
    made()(torch.ones(4))
    assert ["y[0] = 7" in text for _, _, text in launched.names] == [False, True]


def test_folders_of_files_that_it_includes_are_seen_from_its_own(launched, made, tmp_path):
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "more.cuh").write_text("#define MORE 7\n")
    (tmp_path / "k.cu").write_text('#include "more.cuh"\n' + TEXT)
    made(include=["common"])(torch.ones(4))
    made()(torch.ones(4))
    assert ["MORE 7" in text for _, _, text in launched.names] == [True, False]


def test_on_a_cpu_it_says_what_would_help(made):
    with pytest.raises(Unsupported, match=r"^CUDA C\+\+ needs tensors on an NVIDIA GPU"):
        made()(torch.ones(4))
