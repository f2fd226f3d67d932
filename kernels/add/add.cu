// Sum. A thread reads 16 bytes of each tensor and writes 16 bytes, so the speed is that of memory.
#include "../numbers.cuh"

// y[i] = a[i] + b[i] for i < count. A block of THREADS threads computes THREADS * LANES<T> elements. The address of y is a multiple of 16 bytes;
// those of a and b are if ALIGNED.
template <typename T, bool ALIGNED, int THREADS = 256>
__global__ void __launch_bounds__(THREADS) add_kernel(const T* a, const T* b, T* y, long long count) {
    const long long first = blockIdx.x * (long long)(THREADS * LANES<T>);
    if (ALIGNED && first + THREADS * LANES<T> <= count) {
        const long long i = first + threadIdx.x * LANES<T>;
        wide<T> left[LANES<T>], right[LANES<T>];
        load(a + i, left);
        load(b + i, right);
#pragma unroll
        for (int lane = 0; lane < LANES<T>; lane++) left[lane] += right[lane];
        store(y + i, left);
        return;
    }
#pragma unroll
    for (int step = 0; step < LANES<T>; step++) {
        const long long i = first + step * THREADS + threadIdx.x;
        if (i < count) y[i] = narrow<T>(widen(a[i]) + widen(b[i]));
    }
}
