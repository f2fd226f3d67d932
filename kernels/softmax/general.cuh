// Rows of any length, stride and alignment, and float64. Each row is read twice, the second time from a cache if it fits.
//
// In the first pass each thread keeps the largest x so far and the sum relative to it, and rescales the sum when it reads a
// larger x (Milakov & Gimelshein 2018, arXiv:1805.02867, algorithm 3).
#pragma once

#include "row.cuh"

template <typename W>
struct Running {
    W largest, sum;
};

template <typename W>
__device__ inline W minus_infinity() {
    return -(W)infinity();
}

__device__ inline float exponential(float x) { return exp_fast(x); }
__device__ inline double exponential(double x) { return exp(x); }

template <typename W>
__device__ inline Running<W> merge(Running<W> a, Running<W> b) {
    const W largest = a.largest > b.largest ? a.largest : b.largest;
    const W base = largest == minus_infinity<W>() ? (W)0 : largest;
    return {largest, a.sum * exponential(a.largest - base) + b.sum * exponential(b.largest - base)};
}

// Merges the runs of THREADS neighbouring threads. Each of them gets the result. All groups of the block call it together.
template <typename W, int THREADS, int GROUPS>
__device__ inline Running<W> merge_threads(Running<W> run) {
    constexpr int WARPS = THREADS / 32;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const W largest = __shfl_xor_sync(ALL_LANES, run.largest, step), sum = __shfl_xor_sync(ALL_LANES, run.sum, step);
        run = merge<W>(run, {largest, sum});
    }
    if constexpr (WARPS > 1) {
        __shared__ Running<W> parts[GROUPS][WARPS];
        const int group = threadIdx.x / THREADS;
        if (threadIdx.x % 32 == 0) parts[group][threadIdx.x % THREADS / 32] = run;
        __syncthreads();
        run = parts[group][0];
        for (int i = 1; i < WARPS; i++) run = merge<W>(run, parts[group][i]);
    }
    return run;
}

// How rows are loaded: one by one, in whole vectors of 16 bytes, or in whole vectors but for their edges (row.cuh).
enum class Access { elements, vectors, edges };

// Elements `begin` to `end` of a row, for THREADS threads.
template <typename T, int THREADS, Access ACCESS>
struct Stretch {
    using W = wide<T>;
    static constexpr bool WIDE = ACCESS != Access::elements;
    static constexpr int COUNT = WIDE ? LANES<T> : 1;  // elements of an access
    static constexpr int STEP = THREADS * COUNT;
    static constexpr int UNROLL = sizeof(T) == 8 ? 1 : 4;  // unrolled, float64 would spill

    const T* x;
    T* y;
    long long begin, end, column_stride;
    int thread;
    long long edge = 0;  // the element of this thread in the edges
    bool has_edge = false;

    // A stretch of `each` elements of a row, from `begin` on. The first one has the edges.
    __device__ Stretch(const T* x, T* y, long long row, long long length, long long x_stride, long long column_stride,
                       long long begin, long long each, int thread)
        : x(x + row * x_stride), y(y + row * length), begin(begin), column_stride(column_stride), thread(thread) {
        if constexpr (ACCESS == Access::edges) {
            const int head = (COUNT - (int)(row * x_stride % COUNT)) % COUNT;
            this->x += head;
            this->y += head;
            length -= head;
            const long long whole = length / COUNT * COUNT;
            edge = thread - COUNT + (thread < COUNT ? 0 : whole);
            has_edge = begin == 0 && thread < 2 * COUNT && edge >= -head && edge < length;
            length = whole;
        }
        end = begin + each < length ? begin + each : length;
    }

    __device__ void read(long long at, W (&values)[COUNT]) const {
        if constexpr (WIDE) {
            load(x + at, values);
        } else {
            values[0] = widen(x[at * column_stride]);
        }
    }

    __device__ Running<W> run() const {
        Running<W> run = {minus_infinity<W>(), (W)0};
#pragma unroll UNROLL
        for (long long at = begin + thread * COUNT; at < end; at += STEP) {
            W values[COUNT];
            read(at, values);
            W largest = run.largest;
#pragma unroll
            for (int j = 0; j < COUNT; j++) largest = values[j] > largest ? values[j] : largest;
            const W base = largest == minus_infinity<W>() ? (W)0 : largest;
            run.sum *= exponential(run.largest - base);
            run.largest = largest;
#pragma unroll
            for (int j = 0; j < COUNT; j++) run.sum += exponential(values[j] - base);
        }
        if (has_edge) run = merge<W>(run, {widen(x[edge]), (W)1});
        return run;
    }

    // In reverse order, since the cache still holds what was read last.
    __device__ void write(Running<W> row) const {
        const W factor = 1 / row.sum;
        const long long steps = (end - begin + STEP - 1) / STEP;
#pragma unroll UNROLL
        for (long long step = steps - 1; step >= 0; step--) {
            const long long at = begin + step * STEP + thread * COUNT;
            if (at >= end) continue;
            W values[COUNT];
            read(at, values);
#pragma unroll
            for (int j = 0; j < COUNT; j++) values[j] = exponential(values[j] - row.largest) * factor;
            if constexpr (WIDE) {
                store(y + at, values);
            } else {
                y[at] = narrow<T>(values[0]);
            }
        }
        if (has_edge) y[edge] = narrow<T>(exponential(widen(x[edge]) - row.largest) * factor);
    }
};

// A row has THREADS threads, and a block ROWS rows. Lengths and strides are in elements.
template <typename T, int THREADS, int ROWS, Access ACCESS>
__global__ void __launch_bounds__(THREADS* ROWS)
    softmax_general(const T* x, T* y, long long rows, long long length, long long x_stride, long long column_stride) {
    const long long row = blockIdx.x * (long long)ROWS + threadIdx.x / THREADS;
    // No early return: the rows of a block wait for each other.
    Stretch<T, THREADS, ACCESS> stretch(x, y, row, length, x_stride, column_stride, 0, length, threadIdx.x % THREADS);
    if (row >= rows) {
        stretch.end = 0;
        stretch.has_edge = false;
    }
    stretch.write(merge_threads<wide<T>, THREADS, ROWS>(stretch.run()));
}

// For few rows, in two launches: a row has `parts` blocks of `each` elements; the last block may have fewer.
template <typename T, int THREADS, Access ACCESS>
__device__ inline Stretch<T, THREADS, ACCESS> part_of(const T* x, T* y, long long length, long long x_stride,
                                                      long long column_stride, long long parts, long long each) {
    const long long row = blockIdx.x / parts, begin = blockIdx.x % parts * each;
    return {x, y, row, length, x_stride, column_stride, begin, each, (int)threadIdx.x};
}

template <typename T, int THREADS, Access ACCESS>
__global__ void __launch_bounds__(THREADS)
    softmax_parts(const T* x, T* y, long long length, long long x_stride, long long column_stride, long long parts,
                  long long each, Running<wide<T>>* runs) {
    const auto part = part_of<T, THREADS, ACCESS>(x, y, length, x_stride, column_stride, parts, each);
    const auto run = merge_threads<wide<T>, THREADS, 1>(part.run());
    if (threadIdx.x == 0) runs[blockIdx.x] = run;
}

template <typename T, int THREADS, Access ACCESS>
__global__ void __launch_bounds__(THREADS)
    softmax_whole(const T* x, T* y, long long length, long long x_stride, long long column_stride, long long parts,
                  long long each, const Running<wide<T>>* runs) {
    using W = wide<T>;
    const long long row = blockIdx.x / parts;
    Running<W> run = {minus_infinity<W>(), (W)0};
    for (long long i = threadIdx.x; i < parts; i += THREADS) run = merge<W>(run, runs[row * parts + i]);
    const auto part = part_of<T, THREADS, ACCESS>(x, y, length, x_stride, column_stride, parts, each);
    part.write(merge_threads<W, THREADS, 1>(run));
}
