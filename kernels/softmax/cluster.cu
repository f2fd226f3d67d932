// Softmax of rows that are shared by a cluster of CTAs, each with its slice in registers.
//
// Each warp sends the (largest, sum) of what it holds to every CTA of the cluster, and each CTA merges all of them: one
// trip through distributed shared memory, and no barrier of the CTA. The grid may have fewer clusters than there are
// rows; with AHEAD, the next row is loaded before the present one is reduced.
#include "row.cuh"
#include "sync.cuh"

template <class T, int THREADS, int VECTORS, int CLUSTER, bool AHEAD, bool WHOLE, int CTAS>
__global__ void __launch_bounds__(THREADS, CTAS)
    softmax_cluster(const uint4* __restrict__ x, uint4* __restrict__ y, long long rows, long long x_stride, int vectors) {
  constexpr int WARPS = THREADS / 32;
  constexpr int PARTS = WARPS * CLUSTER;
  // Twice, for a CTA that is a row ahead: to be two ahead it would need a message from this one, which comes later.
  __shared__ Partial parts[2][PARTS];
  __shared__ Barrier received[2];
  const int lane = threadIdx.x % 32;
  const unsigned rank = cluster_rank();
  const long long clusters = gridDim.x / CLUSTER;
  const int slice = WHOLE ? THREADS * VECTORS : (vectors + CLUSTER - 1) / CLUSTER;
  const int begin = rank * slice + threadIdx.x;
  const int end = min(vectors, static_cast<int>(rank + 1) * slice);

  auto load = [&](uint4(&v)[VECTORS], long long row) {
    const uint4* from = x + row * x_stride + begin;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) v[i] = WHOLE || begin + i * THREADS < end ? from[i * THREADS] : lowest<T>();
  };

  long long row = blockIdx.x / CLUSTER;
  uint4 v[VECTORS];
  load(v, row);
  if (threadIdx.x == 0) {
    received[0].init(1);
    received[1].init(1);
    fence_barrier_init();
  }
  cluster_arrive();
  cluster_wait();  // while the loads are under way: from here on every barrier of the cluster can be sent to

  for (unsigned turn = 0;; turn++) {
    const unsigned side = turn & 1;
    uint4 next[VECTORS];
    const bool more = row + clusters < rows;
    if (AHEAD && more) load(next, row + clusters);

    if (threadIdx.x == 0) received[side].arrive_and_expect(PARTS * sizeof(Partial));
    const Partial part = partial_of<T, 32>(v);
    if (lane < CLUSTER) {
      send(lane, &parts[side][rank * WARPS + threadIdx.x / 32], part.largest, part.sum, received[side]);
    }
    received[side].wait(turn >> 1 & 1);
    Partial mine = parts[side][lane % PARTS];
#pragma unroll
    for (int i = lane + 32; i < PARTS; i += 32) mine = merge(mine, parts[side][i]);
    const Partial whole = merge_lanes < PARTS<32 ? PARTS : 32>(mine);

    stay_packed(v);
    const Weights<T> weights(whole);
    uint4* to = y + row * vectors + begin;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
      if (WHOLE || begin + i * THREADS < end) to[i * THREADS] = weights(v[i]);
    }
    if (!more) break;
    row += clusters;
    if constexpr (AHEAD) {
#pragma unroll
      for (int i = 0; i < VECTORS; i++) v[i] = next[i];
    } else {
      load(v, row);
    }
  }
}
