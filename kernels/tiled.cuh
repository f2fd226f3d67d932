// y_ij = finish(sum_k term(a_ik, b_kj)) for any term. A tile of y is in registers, tiles of a and b are in shared memory.
//
// A block of 16 x 16 threads computes a tile of y. A thread computes ROWS x COLS elements of it, in squares that are 16 bytes
// wide, so that it reads a and b from shared memory 16 bytes at a time and without bank conflicts.
#pragma once

#include "numbers.cuh"

constexpr int SIDE = 16;  // threads along each side of a tile
constexpr int THREADS = SIDE * SIDE;
constexpr int DEPTH = 8;  // length of a step along k
constexpr int GROUP = 8;  // rows of tiles that run together, so that their columns of b stay in L2

// Loads 16 bytes from `from`. Only the first `valid` elements exist; the others become 0 and change no sum.
template <typename T, bool ALIGNED>
__device__ inline uint4 fetch(const T* from, int valid) {
    uint4 bits = {0, 0, 0, 0};
    if constexpr (ALIGNED) {
        return valid > 0 ? *reinterpret_cast<const uint4*>(from) : bits;
    }
    T* at = reinterpret_cast<T*>(&bits);
#pragma unroll
    for (int i = 0; i < LANES<T>; i++) {
        if (i < valid) at[i] = from[i];
    }
    return bits;
}

template <int COUNT>
struct Bytes {
    using type = uint4;
};
template <>
struct Bytes<8> {
    using type = uint2;
};

// Clamps a count to an int that is larger than any tile.
__device__ inline int few(long long count) { return count < 4096 ? (int)count : 4096; }

// Moves tiles [DEPTH, WIDTH] of an operand, one after the other along k, from global to shared memory. BY_K: the rows in
// memory run along k, as those of a in a product; else its columns do, as those of b. Each thread moves COUNT vectors, and
// keeps them in registers while the block computes with the previous tile.
template <typename T, int WIDTH, bool BY_K, bool ALIGNED>
struct Operand {
    static constexpr int PADDED = WIDTH + 16 / sizeof(wide<T>);  // avoids bank conflicts
    static constexpr int ALONG = (BY_K ? DEPTH : WIDTH) / LANES<T>;  // vectors of one row in memory
    static constexpr int ROWS = BY_K ? WIDTH : DEPTH;
    static constexpr int APART = THREADS / ALONG;  // rows between a thread's vector and its next one
    static constexpr int COUNT = (ROWS + APART - 1) / APART;
    static_assert(THREADS % ALONG == 0, "a thread stays in its column");

    const int row = threadIdx.x / ALONG, column = threadIdx.x % ALONG * LANES<T>;  // position of the first vector in the tile
    const T* from;  // address of that vector
    const long long stride;
    const int along_y;  // rows, or elements of a row, that exist from that vector on, in the direction of y
    uint4 vectors[COUNT];

    __device__ Operand(const T* base, long long stride, long long first, long long size)
        : from(base + ((BY_K ? first : 0) + row) * stride + (BY_K ? 0 : first) + column),
          stride(stride),
          along_y(few(size - first - (BY_K ? row : column))) {}

    // Loads the next tile into registers. `along_k` of its rows or columns exist.
    __device__ void get(int along_k) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const bool inside = row + i * APART < ROWS && (BY_K ? i * APART < along_y : row + i * APART < along_k);
            vectors[i] = fetch<T, ALIGNED>(from + i * APART * stride, !inside ? 0 : BY_K ? along_k - column : along_y);
        }
        from += BY_K ? DEPTH : DEPTH * stride;
    }

    __device__ void put(wide<T> (*tile)[PADDED]) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (ROWS % APART != 0 && row + i * APART >= ROWS) break;
            const T* at = reinterpret_cast<const T*>(&vectors[i]);
#pragma unroll
            for (int lane = 0; lane < LANES<T>; lane++) {
                const wide<T> x = widen(at[lane]);
                if constexpr (BY_K) {
                    tile[column + lane][row + i * APART] = x;
                } else {
                    tile[row + i * APART][column + lane] = x;
                }
            }
        }
    }
};

// Reads the COUNT numbers of one line of a tile that belong to thread `place` out of SIDE, in squares of WIDE.
template <typename W, int COUNT, int WIDE>
__device__ inline void take(const W* line, int place, W (&x)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i += WIDE) {
        *reinterpret_cast<uint4*>(&x[i]) = *reinterpret_cast<const uint4*>(line + i * SIDE + place * WIDE);
    }
}

// Computes y [m, n] from a [m, k] and b [k, n], or [n, k] if B_BY_K. Rows of a and b have strides, and y is contiguous.
// After every CHUNK terms, a multiple of DEPTH, the sum is added to a second one and starts again (0: never). The error of a
// sum of k numbers of one sign grows with the square root of k; with chunks it grows with that of CHUNK + k / CHUNK.
// ALIGNED: address and length of all rows of a, b and y are multiples of 16 bytes.
template <typename T, int ROWS, int COLS, int CHUNK, bool B_BY_K, bool ALIGNED, typename Term, typename Finish>
__device__ inline void tiled(
    const T* a, const T* b, T* y, long long m, long long n, long long k, long long a_stride, long long b_stride,
    Term term, Finish finish) {
    using W = wide<T>;
    constexpr int WIDE = 16 / sizeof(W);
    using A = Operand<T, ROWS * SIDE, true, ALIGNED>;
    using B = Operand<T, COLS * SIDE, B_BY_K, ALIGNED>;
    __shared__ alignas(16) W a_tiles[2][DEPTH][A::PADDED];
    __shared__ alignas(16) W b_tiles[2][DEPTH][B::PADDED];

    const int down = (m + ROWS * SIDE - 1) / (ROWS * SIDE), across = (n + COLS * SIDE - 1) / (COLS * SIDE);
    const int above = blockIdx.x / (GROUP * across) * GROUP, within = blockIdx.x - above * across;
    const int height = min(GROUP, down - above), tile_row = above + within % height, tile_col = within / height;
    const int thread_row = threadIdx.x / SIDE, thread_col = threadIdx.x % SIDE;

    W sum[ROWS][COLS] = {};
    W total[CHUNK ? ROWS : 1][COLS] = {};
    A next_a(a, a_stride, tile_row * (ROWS * SIDE * 1ll), m);
    B next_b(b, b_stride, tile_col * (COLS * SIDE * 1ll), n);
    next_a.get(few(k));
    next_b.get(few(k));
    next_a.put(a_tiles[0]);
    next_b.put(b_tiles[0]);
    __syncthreads();

    int now = 0;
    for (long long at = 0; at < k; at += DEPTH) {
        const bool more = at + DEPTH < k;
        if (more) {
            next_a.get(few(k - at - DEPTH));
            next_b.get(few(k - at - DEPTH));
        }
#pragma unroll
        for (int step = 0; step < DEPTH; step++) {
            W x[ROWS], z[COLS];
            take<W, ROWS, WIDE>(a_tiles[now][step], thread_row, x);
            take<W, COLS, WIDE>(b_tiles[now][step], thread_col, z);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
#pragma unroll
                for (int j = 0; j < COLS; j++) sum[i][j] = term(x[i], z[j], sum[i][j]);
            }
        }
        if constexpr (CHUNK != 0) {
            if ((at + DEPTH) % CHUNK == 0) {
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
#pragma unroll
                    for (int j = 0; j < COLS; j++) total[i][j] += sum[i][j], sum[i][j] = 0;
                }
            }
        }
        if (more) {  // into the other half: all threads that read it have passed the barrier since
            next_a.put(a_tiles[1 - now]);
            next_b.put(b_tiles[1 - now]);
        }
        __syncthreads();
        now = 1 - now;
    }

    using Square = typename Bytes<WIDE * sizeof(T)>::type;
    const long long first_row = tile_row * (ROWS * SIDE * 1ll), first_col = tile_col * (COLS * SIDE * 1ll);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const long long row = first_row + i / WIDE * (WIDE * SIDE) + thread_row * WIDE + i % WIDE;
#pragma unroll
        for (int j = 0; j < COLS; j += WIDE) {
            const long long col = first_col + j * SIDE + thread_col * WIDE;
            Square square;
            T* values = reinterpret_cast<T*>(&square);
#pragma unroll
            for (int lane = 0; lane < WIDE; lane++) {
                values[lane] = narrow<T>(finish(CHUNK ? total[CHUNK ? i : 0][j + lane] + sum[i][j + lane] : sum[i][j + lane]));
            }
            T* to = y + row * n + col;
            if constexpr (ALIGNED) {
                if (row < m && col < n) __stwb(reinterpret_cast<Square*>(to), square);  // one store; an assignment splits
            } else if (row < m) {
#pragma unroll
                for (int lane = 0; lane < WIDE; lane++) {
                    if (col + lane < n) to[lane] = values[lane];
                }
            }
        }
    }
}
