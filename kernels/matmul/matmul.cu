// y = a b on tensor cores, for 16-bit types, summed in float. It uses mma.sync, which every GPU from sm_80 on has.
//
// A block computes a tile [BM, BN] of y, and a warp a tile [WM, WN] of that, in registers. Tiles [BM, BK] of a and [BK, BN]
// of b pass through STAGES buffers in shared memory; cp.async fills some while the block computes with others. Chunks of 16
// bytes are permuted there, so that neither the copies nor ldmatrix have bank conflicts.
#include "../numbers.cuh"

constexpr int GROUP = 8;  // rows of tiles that run together, so that their columns of b stay in L2
constexpr int CHUNK = 8;  // elements in 16 bytes

// The index of chunk `column` of row `row`, in a tile whose rows have CHUNKS chunks.
template <int CHUNKS>
__device__ inline int permuted(int row, int column) {
    // ldmatrix reads eight rows of one column together. They must be in different 16-byte parts of 128 bytes.
    return row * CHUNKS + (column ^ (CHUNKS >= 8 ? row & 7 : (row / (8 / CHUNKS)) & (CHUNKS - 1)));
}

__device__ inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes to shared memory: the first `valid` elements of `from`, and zeros. If ALIGNED, all or none are valid.
template <typename T, bool ALIGNED>
__device__ inline void fill(uint4* to, const T* from, long long valid) {
    if constexpr (ALIGNED) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                     "r"(valid > 0 ? 16 : 0)
                     : "memory");
    } else {
        uint4 bits = {0, 0, 0, 0};
        T* at = reinterpret_cast<T*>(&bits);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            if (i < valid) at[i] = from[i];
        }
        *to = bits;
    }
}

// Copies the tile [ROWS, COLS] at (row, col) of a matrix [height, width].
template <typename T, int ROWS, int COLS, int THREADS, bool ALIGNED>
__device__ inline void fill_tile(
    uint4* tile, const T* base, long long stride, long long row, long long height, long long col, long long width) {
    constexpr int CHUNKS = COLS / CHUNK;
    static_assert(ROWS * CHUNKS % THREADS == 0, "every thread fills as many chunks");
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / THREADS; i++) {
        const int index = threadIdx.x + i * THREADS, r = index / CHUNKS, c = index % CHUNKS;
        const long long valid = row + r < height ? width - col - c * CHUNK : 0;
        const T* from = valid > 0 ? base + (row + r) * stride + col + c * CHUNK : base;  // always a valid address
        fill<T, ALIGNED>(tile + permuted<CHUNKS>(r, c), from, valid);
    }
}

__device__ inline void load_matrices(unsigned (&x)[4], const uint4* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(from)));
}

__device__ inline void load_transposed(unsigned (&x)[4], const uint4* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(from)));
}

__device__ inline void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bfloat16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, float16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Computes y [m, n] from a [m, k] and b [k, n]. Rows of a and b have strides, and y is contiguous. ALIGNED: address and
// length of all rows of a, b and y are multiples of 16 bytes. Dynamic shared memory: STAGES (BM BK + BK BN) elements, and at
// least BM BN.
template <typename T, int BM, int BN, int BK, int WM, int WN, int STAGES, bool ALIGNED>
__global__ void __launch_bounds__(32 * (BM / WM) * (BN / WN)) matmul_kernel(
    const T* a, const T* b, T* y, long long m, long long n, long long k, long long a_stride, long long b_stride) {
    constexpr int THREADS = 32 * (BM / WM) * (BN / WN);
    constexpr int A_CHUNKS = BM * BK / CHUNK, B_CHUNKS = BK * BN / CHUNK;
    extern __shared__ uint4 tiles[];

    const int down = (m + BM - 1) / BM, across = (n + BN - 1) / BN;
    const int above = blockIdx.x / (GROUP * across) * GROUP, within = blockIdx.x - above * across;
    const int height = min(GROUP, down - above);
    const long long first_row = (above + within % height) * (long long)BM, first_col = within / height * (long long)BN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;

    const auto fill_stage = [&](int stage, long long at) {
        uint4* tile = tiles + stage * (A_CHUNKS + B_CHUNKS);
        fill_tile<T, BM, BK, THREADS, ALIGNED>(tile, a, a_stride, first_row, m, at, k);
        fill_tile<T, BK, BN, THREADS, ALIGNED>(tile + A_CHUNKS, b, b_stride, at, k, first_col, n);
    };
    const auto commit = [] { asm volatile("cp.async.commit_group;" ::: "memory"); };

    const long long steps = (k + BK - 1) / BK;
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        if (stage < steps) fill_stage(stage, (long long)stage * BK);
        commit();
    }

    float sum[WM / 16][WN / 8][4] = {};
    int stage = 0;
    for (long long step = 0; step < steps; step++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();  // this stage is full, and all threads have read the previous one
        const long long coming = step + STAGES - 1;
        if (coming < steps) fill_stage(stage == 0 ? STAGES - 1 : stage - 1, coming * BK);
        commit();

        const uint4* a_tile = tiles + stage * (A_CHUNKS + B_CHUNKS);
        const uint4* b_tile = a_tile + A_CHUNKS;
#pragma unroll
        for (int part = 0; part < BK / 16; part++) {
            unsigned x[WM / 16][4], z[WN / 16][4];
#pragma unroll
            for (int i = 0; i < WM / 16; i++) {
                const int row = warp_row + i * 16 + lane % 16, chunk = part * 2 + lane / 16;
                load_matrices(x[i], a_tile + permuted<BK / CHUNK>(row, chunk));
            }
#pragma unroll
            for (int j = 0; j < WN / 16; j++) {
                const int row = part * 16 + lane % 16, chunk = (warp_col + j * 16) / CHUNK + lane / 16;
                load_transposed(z[j], b_tile + permuted<BN / CHUNK>(row, chunk));
            }
#pragma unroll
            for (int i = 0; i < WM / 16; i++) {
#pragma unroll
                for (int j = 0; j < WN / 8; j++) multiply(sum[i][j], x[i], z[j / 2][j % 2 * 2], z[j / 2][j % 2 * 2 + 1], T());
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

    // Through shared memory: directly, the four lanes that hold eight neighbours of y would write 16 bytes together.
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    using Two = decltype(narrow(0.0f, 0.0f, T()));
#pragma unroll
    for (int i = 0; i < WM / 16; i++) {
#pragma unroll
        for (int j = 0; j < WN / 8; j++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = warp_row + i * 16 + half * 8 + lane / 4, chunk = (warp_col + j * 8) / CHUNK;
                Two* to = reinterpret_cast<Two*>(tiles + permuted<BN / CHUNK>(row, chunk)) + lane % 4;
                *to = narrow(sum[i][j][half * 2], sum[i][j][half * 2 + 1], T());
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < BM * BN / CHUNK / THREADS; i++) {
        const int index = threadIdx.x + i * THREADS, r = index / (BN / CHUNK), c = index % (BN / CHUNK);
        const long long row = first_row + r, col = first_col + c * CHUNK;
        if (row >= m || col >= n) continue;
        const uint4 bits = tiles[permuted<BN / CHUNK>(r, c)];
        if constexpr (ALIGNED) {
            *reinterpret_cast<uint4*>(y + row * n + col) = bits;
        } else {
            const T* at = reinterpret_cast<const T*>(&bits);
#pragma unroll
            for (int lane = 0; lane < CHUNK; lane++) {
                if (col + lane < n) y[row * n + col + lane] = at[lane];
            }
        }
    }
}
