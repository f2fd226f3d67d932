// Distances from differences, which stay accurate where points are close. The expansion |a|^2 + |b|^2 - 2 a.b is faster on
// tensor cores, and loses such distances to cancellation.
#include "../tiled.cuh"

// All terms are positive, so their rounding errors add up: a single sum of 2048 terms would miss the tolerance.
constexpr int CHUNK = 64;

template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(THREADS, 2) cdist_kernel(
    const T* a, const T* b, T* y, long long n, long long m, long long d, long long a_stride, long long b_stride) {
    constexpr int ROWS = sizeof(T) == 8 ? 4 : 8, COLS = sizeof(T) == 8 ? 2 : 4;
    const auto term = [](wide<T> x, wide<T> z, wide<T> sum) {
        const wide<T> difference = x - z;
        return sum + difference * difference;
    };
    const auto finish = [](wide<T> sum) { return sqrt(sum); };
    tiled<T, ROWS, COLS, CHUNK, true, ALIGNED>(a, b, y, n, m, d, a_stride, b_stride, term, finish);
}
