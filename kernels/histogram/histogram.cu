// Histogram. Each block counts in its shared memory, and adds its counts to the result at the end.
//
// Each bin has COPIES counters in a row, and a lane of a warp takes the one of its number. With 32 copies the lanes of a
// warp are in 32 banks whatever their bins are, so that counting takes the same time for all data, also if all elements are
// in one bin.
#include "bins.cuh"

constexpr int THREADS = 1024;

template <int COPIES, bool ALIGNED>
__global__ void __launch_bounds__(THREADS, 2)
    histogram_kernel(const float* x, unsigned long long* y, long long count, long long bins) {
    extern __shared__ unsigned counters[];  // [bins][COPIES]
    for (int i = threadIdx.x; i < bins * COPIES; i += THREADS) counters[i] = 0;
    __syncthreads();
    unsigned* mine = counters + threadIdx.x % COPIES;
    for_each_bin<ALIGNED, 2>(x, count, bins, [&](int bin) { atomicAdd(mine + bin * COPIES, 1u); });
    __syncthreads();
    for (int bin = threadIdx.x; bin < bins; bin += THREADS) {
        unsigned total = 0;
#pragma unroll
        for (int copy = 0; copy < COPIES; copy++) total += counters[bin * COPIES + (copy + bin) % COPIES];  // in all banks
        if (total) atomicAdd(y + bin, (unsigned long long)total);
    }
}
