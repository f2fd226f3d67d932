// y = a b without tensor cores, for every type, summed in float, or in double for double.
#include "../tiled.cuh"

template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(THREADS, 2) matmul_kernel(
    const T* a, const T* b, T* y, long long m, long long n, long long k, long long a_stride, long long b_stride) {
    constexpr int EACH = sizeof(T) == 8 ? 4 : 8;  // elements of y of a thread, along each side: at most 64 registers
    const auto term = [](wide<T> x, wide<T> z, wide<T> sum) { return sum + x * z; };
    const auto finish = [](wide<T> sum) { return sum; };
    tiled<T, EACH, EACH, 0, false, ALIGNED>(a, b, y, m, n, k, a_stride, b_stride, term, finish);
}
