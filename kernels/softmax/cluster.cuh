// Rows that a cluster of blocks shares. Each block holds a slice in registers; it is read once and written once. Needs sm_90.
#pragma once

#include "row.cuh"
#include "sync.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// As softmax_rows, with CLUSTER blocks for a row. Each warp sends its partial to every block of the cluster, and every block
// merges all partials. This takes one trip through distributed shared memory, and no barrier of the block.
template <typename T, int THREADS, int VECTORS, int SURE, int CLUSTER, int BLOCKS, bool EDGES>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, BLOCKS)
    softmax_cluster(const uint4* __restrict__ x, uint4* __restrict__ y, long long x_stride, long long length) {
    constexpr int WARPS = THREADS / 32;
    constexpr int PARTS = WARPS * CLUSTER;
    __shared__ Partial parts[PARTS];
    __shared__ Barrier received;
    const int lane = threadIdx.x % 32;
    const int rank = cluster_rank();
    const Row<T, EDGES> whole(x, y, blockIdx.x / CLUSTER, x_stride, length);
    const int slice = (whole.vectors + CLUSTER - 1) / CLUSTER;
    const int begin = rank * slice + threadIdx.x;
    const int left = min(whole.vectors, (rank + 1) * slice) - begin;
    x = whole.x + begin;
    y = whole.y + begin;

    uint4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) v[i] = i < SURE || i * THREADS < left ? x[i * THREADS] : lowest<T>();
    const float edge = rank == 0 ? whole.load_edge(threadIdx.x) : -infinity();
    if (threadIdx.x == 0) {
        received.init(1);
        fence_barrier_init();
    }
    __syncwarp();  // racecheck would report a race, as if different threads executed the two
    if (threadIdx.x == 0) received.arrive_and_expect(PARTS * sizeof(Partial));
    cluster_arrive();
    const Partial part = partial_of<T, 32, EDGES>(v, edge);
    cluster_wait();  // all barriers of the cluster are initialized; this takes no time, since the loads took longer
    if (lane < CLUSTER) send(part.largest, part.sum, &parts[rank * WARPS + threadIdx.x / 32], received, lane);
    received.wait(0);

    Partial mine = parts[lane % PARTS];
#pragma unroll
    for (int i = 32; i < PARTS; i += 32) mine = merge(mine, parts[lane + i]);
    stay_packed(v);
    const Weights<T> weights(merge_lanes<(PARTS < 32 ? PARTS : 32)>(mine));
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        if (i < SURE || i * THREADS < left) y[i * THREADS] = weights(v[i]);
    }
    if (rank == 0) whole.store_edge(threadIdx.x, weights(edge));
}

#endif
