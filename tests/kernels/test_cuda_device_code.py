"""The device code of .cu files as people write them. NVRTC compiles it without a GPU."""

from __future__ import annotations

import pytest
import torch

from runner.kernels import cuda_build, cuda_device_code, cuda_nvrtc

COURSE = """
#include <stdio.h>
#include <stdlib.h>
#include <vector>
#include <cublas_v2.h>
#include "tile.cuh"

#define CHECK(call) do { if ((call) != cudaSuccess) { exit(1); } } while (0)
#define N 256  // it's a size: "{"
using std::vector;

int rows = 10;
float *d_a;
const int WIDTH = 8, DEPTH = WIDTH * 2;
struct Options { std::vector<int> sizes; std::string name; };

void reference(const std::vector<float>& a, float* c) { for (auto x : a) { *c += x; } }
static double seconds() { struct timespec now; clock_gettime(0, &now); return now.tv_sec; }

/* { the kernel of the lesson */
__global__ void sgemm(int M, float alpha, const float *A, float beta, float *C) {
    const uint x = blockIdx.x * TILE + threadIdx.x;
    char brace = '}';
    if (x < M && brace) C[x] = alpha * tile_sum(A, DEPTH) + beta * C[x] + FLT_MAX * M_PI;
}

int main(int argc, char** argv) {
    Options options;
    dim3 block(32, 32);
    sgemm<<<dim3(1), block>>>(1, 1.0f, d_a, 0.0f, d_a);
    CHECK(cudaDeviceSynchronize());
    printf("}}} %d\\n", rows);
    return 0;
}
"""
TILE = """
#pragma once
#include <cuda_runtime.h>
#include "deeper/tile.cuh"
inline void launch_tile(cudaStream_t stream) { cudaStreamSynchronize(stream); }
"""
DEEPER = """
#pragma once
#include "../tile.cuh"
#define TILE 32
__device__ inline float tile_sum(const float* a, int n) { float s = 0; while (n--) s += a[n]; return s; }
"""

# Text → the kernel in it. Each needs something of its own.
FILES = {
    "torch": (
        """
        #include <torch/extension.h>
        #include <ATen/cuda/CUDAContext.h>
        template <typename scalar_t>
        __global__ void relu(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, int64_t n) {
            for (int64_t i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] > scalar_t(0) ? x[i] : scalar_t(0);
        }
        torch::Tensor run(torch::Tensor x) {
            auto y = torch::empty_like(x);
            AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "relu", ([&] {
                relu<scalar_t><<<1, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<scalar_t>(), 0, 1);
            }));
            return y;
        }
        PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run, "relu"); }
        """,
        "relu<__half>",
    ),
    "names": (
        """
        namespace lesson { namespace inner {
        extern "C" {
        static __global__ void one(float* y) { y[0] = 1; }
        }
        namespace { __device__ int hidden() { return 3; } }
        __global__ void two(float* y) { y[0] = hidden(); }
        } }  // namespace
        void host() { lesson::inner::two<<<1, 1>>>(nullptr); }
        """,
        "lesson::inner::two",
    ),
    "linkage": ('extern "C" __global__ void __launch_bounds__(64 * (1 + 1), 2) f(float* y) { y[0] = 1; }', "f"),
    "static": ("static __global__ void f(float* y) { y[0] = 1; }\nstatic void g() { f<<<1, 1>>>(0); }", "f"),
    "types": (
        """
        typedef struct { float x, y; } Point;
        typedef unsigned long long Count;
        using Real = float;
        enum Mode { FIRST, SECOND = 4 };
        struct __align__(16) Box { Real low[2]; int4 tag; __host__ __device__ Box() : low{1, 2}, tag{} {} };
        class File { std::fstream stream; };
        template <typename T> struct Max { __device__ T operator()(T a, T b) const { return a > b ? a : b; } };
        template <> struct Max<int> { __device__ int operator()(int a, int b) const { return max(a, b); } };
        __device__ float2 operator+(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
        std::ostream& operator<<(std::ostream& out, const Point& p) { return out << p.x; }
        template <int SIZE = (3 > 2 ? 4 : 8), template <typename> class Op = Max>
        __global__ void f(float* y, Count n) {
            Point p = {1, 2}; Box b; float2 s = make_float2(p.x, p.y) + make_float2(b.low[0], 1);
            y[0] = Op<Real>()(s.x, SIZE) + Max<int>()(SECOND, (int)n);
        }
        """,
        "f<>",
    ),
    "constants": (
        """
        #include <limits>
        #include <cstdint>
        constexpr int div_up(int a, int b) { return (a + b - 1) / b; }
        constexpr float table[] = {1.0f, 2.0f};
        static constexpr float LOWEST = -std::numeric_limits<float>::infinity();
        const int THREADS = 4 * div_up(100, 32), WARPS{THREADS / 4};
        const std::string title = "host";
        __constant__ float weights[WARPS] = {1.0f};
        __device__ int counter = 0;
        extern __shared__ float buffer[];
        int counter_of_host = 1'000;
        __global__ void f(float* y, uint8_t n) {
            buffer[threadIdx.x] = weights[0] + table[1];
            y[0] = std::max(LOWEST, buffer[0]) + div_up(n, THREADS) + atomicAdd(&counter, 1) + INFINITY;
        }
        """,
        "f",
    ),
    "macros": (
        """
        #define HD __host__ __device__ inline
        #define FLOAT4(value) (reinterpret_cast<float4*>(&(value))[0])
        #define UNARY(name, expression) \\
            __global__ void name##_kernel(float* y) { float x = y[0]; y[0] = expression; }
        #define BINDING(name) void name(torch::Tensor x) { name##_kernel<<<1, 1>>>(x.data_ptr<float>()); }
        HD float twice(float x) { return 2 * x; }
        UNARY(square, x * x + twice(x) + FLOAT4(y[0]).w)
        BINDING(square)
        UNARY(cube, x * x * x)
        BINDING(cube)
        """,
        "square_kernel",
    ),
    "conditions": (
        """
        #if defined(USE_DOUBLE)
        typedef double real;
        __global__ void f(double* y) {
        #else
        typedef float real;
        __global__ void f(float* y) {
        #endif
        #ifdef DEBUG
            printf("{");
        #endif
            #pragma unroll
            for (int i = 0; i < 4; i++) y[i] = real(i);
        }
        int main() {
        #ifdef USE_DOUBLE
            std::vector<double> y; {
        #else
            std::vector<float> y; {
        #endif
            #pragma omp parallel for
            }
        }
        #ifndef LAST
        __device__ const char* text = R"(} " {)";
        #endif
        """,
        "f",
    ),
    "half": (
        """
        #include <torch/types.h>
        __global__ void f(at::Half* y, c10::BFloat16* z) {
            y[0] = __hadd(y[0], y[1]);
            z[0] = __float2bfloat16(half(1));
        }
        """,
        "f",
    ),
    "declared before": (
        """
        __device__ float later(float x);
        template <typename T> __global__ void f(T* y);
        template __global__ void f<float>(float* y);
        static_assert(sizeof(size_t) == 8, "64 bits");
        template <typename T> __global__ void f(T* y) { assert(y); y[0] = later(y[0]); }
        __device__ float later(float x) { return x + 1; };
        """,
        "f<float>",
    ),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deeper").mkdir()
    for name, text in {"course.cu": COURSE, "tile.cuh": TILE, "deeper/tile.cuh": DEEPER}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def compiled(source, kernel):
    pytest.importorskip("cuda.core")
    symbol, _, _ = cuda_nvrtc.compiled(cuda_device_code.device_file(source, kernel), kernel, "sm_90a")
    return torch._C._demangle(symbol)


def test_a_file_with_a_main_and_headers_of_the_host_builds(folder):
    assert compiled(folder / "course.cu", "sgemm") == "sgemm(int, float, float const*, float, float*)"


@pytest.mark.parametrize("name", FILES)
def test_what_device_code_consists_of_stays(tmp_path, name):
    text, kernel = FILES[name]
    (tmp_path / "k.cu").write_text(text)
    assert kernel.partition("<")[0] in compiled(tmp_path / "k.cu", kernel)


def test_host_code_is_left_out_and_lines_keep_their_numbers(folder):
    text = cuda_device_code.device_code(folder / "course.cu", "sgemm")
    for word in ("main", "std::vector", "Options", "seconds", "rows", "<<<", "cublas", "d_a", "launch_tile"):
        assert word not in text.partition("#line")[2]
    begins = COURSE.splitlines().index(
        "__global__ void sgemm(int M, float alpha, const float *A, float beta, float *C) {"
    )
    before, _, _ = text.partition("__global__ void sgemm")
    last = before[before.rindex("#line") :].splitlines()
    assert int(last[0].split()[1]) + len(last) - 1 == begins + 1


def test_another_kernel_of_the_file_is_not_compiled(tmp_path):
    (tmp_path / "k.cu").write_text(
        "__global__ void good(int* y) { *y = 1; }\n__global__ void bad(int* y) { *y = z; }\n"
    )
    assert cuda_device_code.kernels(tmp_path / "k.cu") == ["good", "bad"]
    compiled(tmp_path / "k.cu", "good")
    with pytest.raises(cuda_build.BuildFailed, match=r'^NVRTC: bad for sm_90a: k\.cu\(2\): error: identifier "z" is'):
        compiled(tmp_path / "k.cu", "bad")


@pytest.mark.parametrize(
    ("file", "old", "new", "answer"),
    [
        ("course.cu", "beta * C[x]", "bet * C[x]", r'course\.cu\(24\): error: identifier "bet" is undefined'),
        ("deeper/tile.cuh", "s += a[n];", "s += a[n]", r"tile\.cuh\(5\): error: expected a \";\""),
    ],
)
def test_a_mistake_is_told_by_the_line_of_the_users_own_file(folder, file, old, new, answer):
    path = folder / file
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(cuda_build.BuildFailed, match=f"^NVRTC: sgemm for sm_90a: {answer}"):
        compiled(folder / "course.cu", "sgemm")


def test_a_name_that_the_file_lacks_is_told_with_those_that_it_has(folder):
    with pytest.raises(cuda_build.BuildFailed, match=r"^course\.cu has no kernel gemm; its kernels: sgemm$"):
        cuda_device_code.device_file(folder / "course.cu", "gemm<32>")
    (folder / "k.cu").write_text("namespace a { namespace b { __global__ void f(int* y) {} } }\n__global__ void g() {}")
    with pytest.raises(cuda_build.BuildFailed, match=r"^k\.cu has no kernel f; its kernels: a::b::f, g$"):
        cuda_device_code.device_file(folder / "k.cu", "f")


FILLS = {
    "cudaMemcpyToSymbol(F, h, 16)": "which the host code fills by cudaMemcpyToSymbol",
    "cudaMemcpyToSymbolAsync<float>(F, h, 16)": "which the host code fills by cudaMemcpyToSymbol",
    "cudaGetSymbolAddress((void**)&h, F)": "whose address the host code takes to fill it",
}


@pytest.mark.parametrize(("fill", "reason"), FILLS.items())
def test_a_constant_that_the_host_fills_is_told(tmp_path, fill, reason):
    (tmp_path / "k.cu").write_text(
        "__constant__ float F[4];\n__constant__ float G[4] = {1, 2, 3, 4};\n"
        "__device__ float weighed(float x) { return F[0] * x; }\n"
        "__global__ void f(float* y) { *y = weighed(*y); }\n"
        "__global__ void g(float* y) { *y *= G[0]; }\n"
        f"void fill(float* h) {{ {fill}; }}\n"
    )
    compiled(tmp_path / "k.cu", "g")
    with pytest.raises(cuda_build.BuildFailed, match=rf"^k\.cu: f reads F, {reason}; .* to the kernel as a pointer$"):
        compiled(tmp_path / "k.cu", "f")


def test_what_needs_torchs_headers_is_told(tmp_path):
    (tmp_path / "k.cu").write_text(
        "#include <torch/extension.h>\n"
        "template <typename T>\n__global__ void f(torch::PackedTensorAccessor32<T, 1> y) { y[0] = 1; }\n"
        "__device__ float wide(at::opmath_type<float> x) { return x; }\n"
        "__global__ void g(float* y) { *y = wide(*y); }\n"
        "__global__ void h(c10::Half* y) { *y = 1; }\n"
        "void launch(at::Tensor y) { f<float><<<1, 1>>>(y.packed_accessor32<float, 1>()); }\n"
    )
    compiled(tmp_path / "k.cu", "h")
    for kernel, name in {"f<float>": "f needs torch::PackedTensorAccessor32", "g": "g needs at::opmath_type"}.items():
        with pytest.raises(
            cuda_build.BuildFailed, match=rf"^k\.cu: {name}, and torch's headers are left out here; wri"
        ):
            compiled(tmp_path / "k.cu", kernel)


def test_an_overloaded_kernel_is_told(tmp_path):
    (tmp_path / "k.cu").write_text("__global__ void f(float* y) {}\n__global__ void f(double* y) {}\n")
    with pytest.raises(cuda_build.BuildFailed, match=r"; several kernels have this name: give each its own\n"):
        compiled(tmp_path / "k.cu", "f")


def test_a_texture_reference_is_told(tmp_path):
    (tmp_path / "k.cu").write_text(
        "texture<float, 2, cudaReadModeElementType> image;\n"
        "__global__ void f(float* y) { *y = tex2D(image, 0.0f, 0.0f); }\n"
        "__global__ void g(float* y) { *y = 1; }\n"
    )
    compiled(tmp_path / "k.cu", "g")
    with pytest.raises(
        cuda_build.BuildFailed, match=r"^k\.cu: f reads image, a texture or surface reference, which CUDA"
    ):
        compiled(tmp_path / "k.cu", "f")


def test_a_file_in_another_folder_is_included_from_those_that_are_given(folder):
    (folder / "below").mkdir()
    (folder / "below" / "k.cu").write_text('#include "tile.cuh"\n__global__ void f(float* y) { y[0] = TILE; }\n')
    source = folder / "below" / "k.cu"
    assert "TILE 32" not in cuda_device_code.device_code(source, "f")
    assert "TILE 32" in cuda_device_code.device_code(source, "f", [folder])


def test_a_template_without_its_arguments_is_told(tmp_path):
    (tmp_path / "k.cu").write_text("template <int N> __global__ void f(int* y) { *y = N; }\n")
    with pytest.raises(
        cuda_build.BuildFailed, match=r"f for sm_90a: cannot determine .*; name it as in its file, with"
    ):
        compiled(tmp_path / "k.cu", "f")


def test_the_file_in_the_cache_changes_with_what_it_is_made_of(folder):
    first = cuda_device_code.device_file(folder / "course.cu", "sgemm")
    assert cuda_device_code.device_file(folder / "course.cu", "sgemm") == first
    (folder / "deeper" / "tile.cuh").write_text(DEEPER.replace("s = 0", "s = 1"))
    assert cuda_device_code.device_file(folder / "course.cu", "sgemm") != first
