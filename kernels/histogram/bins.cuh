// Elements and their bins.
#pragma once

#include "../numbers.cuh"

// Calls visit(bin) for each of the count elements of x that is in a bin, each in one thread of the grid. The address of x is
// a multiple of 16 bytes if ALIGNED. A thread reads READS vectors of 16 bytes before it visits their elements.
template <bool ALIGNED, int READS, typename Visit>
__device__ inline void for_each_bin(const float* __restrict__ x, long long count, long long bins, Visit visit) {
    const float scale = (float)bins;
    const int last = (int)bins - 1;
    auto see = [&](float value) {
        if (value >= 0.0f && value <= 1.0f) visit(min((int)(value * scale), last));
    };
    const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const long long threads = gridDim.x * (long long)blockDim.x;
    const long long vectors = ALIGNED ? count / LANES<float> : 0;
    long long i = thread;
    for (; i + (READS - 1) * threads < vectors; i += READS * threads) {
        float values[READS][LANES<float>];
#pragma unroll
        for (int read = 0; read < READS; read++) load(x + (i + read * threads) * LANES<float>, values[read]);
#pragma unroll
        for (int read = 0; read < READS; read++) {
#pragma unroll
            for (int lane = 0; lane < LANES<float>; lane++) see(values[read][lane]);
        }
    }
    for (; i < vectors; i += threads) {
        float values[LANES<float>];
        load(x + i * LANES<float>, values);
#pragma unroll
        for (int lane = 0; lane < LANES<float>; lane++) see(values[lane]);
    }
    for (i = vectors * LANES<float> + thread; i < count; i += threads) see(x[i]);
}
