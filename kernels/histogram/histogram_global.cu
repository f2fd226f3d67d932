// The histogram that one writes first: each element is added to its counter in global memory. Blocks wait for each other
// wherever their elements are in the same bins.
#include "bins.cuh"

template <bool ALIGNED>
__global__ void histogram_kernel(const float* x, unsigned long long* y, long long count, long long bins) {
    for_each_bin<ALIGNED, 1>(x, count, bins, [&](int bin) { atomicAdd(y + bin, 1ull); });
}
