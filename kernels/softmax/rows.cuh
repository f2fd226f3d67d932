// Rows that fit into the registers of a block: read once, written once.
#pragma once

#include "row.cuh"

// A block has ROWS rows, a row THREADS threads, and a thread VECTORS vectors of 16 bytes. The first SURE vectors of a thread
// are always inside the row; the others may lie beyond its end. BLOCKS is the least number of blocks on a multiprocessor.
template <typename T, int THREADS, int ROWS, int VECTORS, int SURE, int BLOCKS, bool EDGES>
__global__ void __launch_bounds__(THREADS* ROWS, BLOCKS)
    softmax_rows(const uint4* __restrict__ x, uint4* __restrict__ y, long long rows, long long x_stride, long long length) {
    constexpr int GROUP = THREADS < 32 ? THREADS : 32;
    constexpr int WARPS = THREADS / GROUP;
    const int thread = threadIdx.x % THREADS;
    const int place = threadIdx.x / THREADS;
    const long long row = blockIdx.x * (long long)ROWS + place;
    const bool inside = ROWS == 1 || row < rows;  // no early return: a block's rows wait for each other below
    const Row<T, EDGES> whole(x, y, row, x_stride, length);
    const int left = whole.vectors - thread;
    x = whole.x + thread;
    y = whole.y + thread;

    uint4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        v[i] = inside && (i < SURE || i * THREADS < left) ? x[i * THREADS] : lowest<T>();
    }
    const float edge = inside ? whole.load_edge(thread) : -infinity();
    Partial part = partial_of<T, GROUP, EDGES>(v, edge);
    if constexpr (WARPS > 1) {
        __shared__ Partial parts[ROWS][WARPS];
        if (thread % 32 == 0) parts[place][thread / 32] = part;
        __syncthreads();
        part = merge_lanes<WARPS>(parts[place][thread % WARPS]);
    }
    stay_packed(v);
    const Weights<T> weights(part);
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        if (inside && (i < SURE || i * THREADS < left)) y[i * THREADS] = weights(v[i]);
    }
    if (inside) whole.store_edge(thread, weights(edge));
}
