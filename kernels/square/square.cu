// Square. A thread reads 16 bytes and writes 16 bytes, so the speed is that of memory.
#include "../numbers.cuh"

constexpr int THREADS = 256;

// y[i] = a[i]^2 for i < count. A block computes THREADS * LANES<T> elements. The address of y is a multiple of 16 bytes;
// that of a is if ALIGNED.
template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(THREADS) square_kernel(const T* a, T* y, long long count) {
    const long long first = blockIdx.x * (long long)(THREADS * LANES<T>);
    if (ALIGNED && first + THREADS * LANES<T> <= count) {
        const long long i = first + threadIdx.x * LANES<T>;
        wide<T> values[LANES<T>];
        load(a + i, values);
#pragma unroll
        for (int lane = 0; lane < LANES<T>; lane++) values[lane] *= values[lane];
        store(y + i, values);
        return;
    }
#pragma unroll
    for (int step = 0; step < LANES<T>; step++) {
        const long long i = first + step * THREADS + threadIdx.x;
        if (i < count) y[i] = narrow<T>(widen(a[i]) * widen(a[i]));
    }
}
