// Softmax of rows that fit into the registers of one CTA: THREADS a row, ROWS rows a CTA, VECTORS of 16 bytes a thread.
#include "row.cuh"

// WHOLE: a row is exactly THREADS * VECTORS vectors. CTAS of them on a multiprocessor. Strides and lengths are in vectors.
template <class T, int THREADS, int ROWS, int VECTORS, bool WHOLE, int CTAS>
__global__ void __launch_bounds__(THREADS* ROWS, CTAS)
    softmax_rows(const uint4* __restrict__ x, uint4* __restrict__ y, long long rows, long long x_stride, int vectors) {
  constexpr int LANES = THREADS < 32 ? THREADS : 32;
  constexpr int WARPS = THREADS / LANES;
  const int thread = threadIdx.x % THREADS;
  const int place = threadIdx.x / THREADS;
  const long long row = static_cast<long long>(blockIdx.x) * ROWS + place;
  const bool inside = ROWS == 1 || row < rows;
  x += row * x_stride;
  y += row * vectors;

  uint4 v[VECTORS];
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    const int at = i * THREADS + thread;
    v[i] = inside && (WHOLE || at < vectors) ? x[at] : lowest<T>();
  }
  Partial part = partial_of<T, LANES>(v);
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
    const int at = i * THREADS + thread;
    if (inside && (WHOLE || at < vectors)) y[at] = weights(v[i]);
  }
}
