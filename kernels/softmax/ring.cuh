// Rows that are too long for the registers of a cluster: read once, through a ring of slots in every multiprocessor's shared
// memory. From sm_90 on.
//
// A row is cut into slices of at most a slot, and the slices of all rows are dealt to the blocks in turn. The warps of a
// block have roles, and each role goes through the block's slices: the loader fills a slot, the reducers find its partial
// and tell the others, the gatherer merges what all told of that row, and the finishers write its weights and free the slot.
// The reducers run ahead of the finishers by up to the ring, so that the wait for the other slices of a row hides behind the
// loads of other rows.
//
// No wait is for ever if all blocks run, which a cooperative launch promises, and none has more slices of a row than slots:
// of the earliest row that is not written, every block can then load what it has, once it has written what came before.
#pragma once

#include "exchange.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

template <int SLOTS, int WARPS>
struct RingState {
    Barrier full[SLOTS];    // the slot holds its slice
    Barrier merged[SLOTS];  // the slice's row is known
    Barrier empty[SLOTS];   // the slot can be filled
    Partial row[SLOTS];
    Partial part[2][WARPS];
};

// Where a role is: at which slice of which row, and in which slot for the how manieth time.
template <int SLOTS>
struct Turn {
    long long row;
    int place, slices, slot = 0, parity = 0;

    __device__ explicit Turn(int slices) : row(blockIdx.x / slices), place(blockIdx.x % slices), slices(slices) {}
    __device__ void next() {
        row += gridDim.x / slices;
        place += gridDim.x % slices;
        if (place >= slices) {
            place -= slices;
            row++;
        }
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        parity ^= slot == 0;
    }
};

// A slot is THREADS * VECTORS vectors; of a thread's, the first SURE are in every slice.
template <typename T, int SLOTS, int THREADS, int VECTORS, int SURE>
struct Ring {
    static constexpr int SLOT = THREADS * VECTORS;
    static constexpr int WARPS = THREADS / 32;  // of the reducers, and of the finishers
    using At = Turn<SLOTS>;

    const uint4* x;
    uint4* y;
    long long rows, x_stride, length;  // in vectors
    int slices;                        // of a row
    Patience patience;
    uint4* slots;
    RingState<SLOTS, WARPS>& state;

    __device__ int slice_length() const { return ((int)length + slices - 1) / slices; }
    __device__ int begin_of(const At& at) const { return at.place * slice_length(); }
    __device__ int length_of(const At& at) const { return min(slice_length(), (int)length - begin_of(at)); }

    __device__ void fill(const At& at) const {
        const int count = length_of(at);
        const uint4* from = x + at.row * x_stride + begin_of(at);
        uint4* to = slots + at.slot * SLOT;
#pragma unroll 8
        for (int i = threadIdx.x % 32; i < count; i += 32) copy_16_bytes(to + i, from + i);
        state.full[at.slot].arrive_after_copies();
    }

    __device__ void load(At at) const {
        for (int count = 0; at.row < rows; at.next(), count++) {
            if (count >= SLOTS) state.empty[at.slot].wait(at.parity ^ 1);
            fill(at);
        }
    }

    __device__ void reduce(At at) const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        for (int side = 0; at.row < rows; at.next(), side ^= 1) {
            const uint4* slot = slots + at.slot * SLOT + threadIdx.x;
            const int left = length_of(at) - threadIdx.x;
            state.full[at.slot].wait(at.parity);
            uint4 v[VECTORS];
#pragma unroll
            for (int i = 0; i < VECTORS; i++) v[i] = i < SURE || i * THREADS < left ? slot[i * THREADS] : lowest<T>();
            const Partial part = partial_of<T, 32>(v);
            if (lane == 0) state.part[side][warp] = part;
            sync_threads(1, THREADS);
            if (warp == 0) {
                const Partial whole = merge_lanes<WARPS>(state.part[side][lane % WARPS]);
                if (lane == 0) tell(patience.exchange, at.row * slices + at.place, whole, patience.launch);
            }
        }
    }

    __device__ void merge_rows(At at) const {
        for (; at.row < rows; at.next()) {
            state.full[at.slot].wait(at.parity);
            const Partial row = gather(patience, at.row * slices, slices);
            if (threadIdx.x % 32 == 0) {
                state.row[at.slot] = row;
                state.merged[at.slot].arrive();
            }
        }
    }

    __device__ void finish(At at) const {
        const int thread = threadIdx.x - THREADS;
        for (; at.row < rows; at.next()) {
            const uint4* slot = slots + at.slot * SLOT + thread;
            const int left = length_of(at) - thread;
            uint4* to = y + at.row * length + begin_of(at) + thread;
            state.full[at.slot].wait(at.parity);
            uint4 v[VECTORS];
#pragma unroll
            for (int i = 0; i < VECTORS; i++) v[i] = slot[i * THREADS];
            state.merged[at.slot].wait(at.parity);
            const Weights<T> weights(state.row[at.slot]);
            __syncwarp();
            if (thread % 32 == 0) state.empty[at.slot].arrive();  // it can be filled while this is written
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                if (i < SURE || i * THREADS < left) to[i * THREADS] = weights(v[i]);
            }
        }
    }
};

template <typename T, int SLOTS, int THREADS, int VECTORS, int SURE>
__global__ void __launch_bounds__(2 * THREADS + 64, 1)
    softmax_ring(const uint4* __restrict__ x, uint4* __restrict__ y, long long rows, long long x_stride, long long length,
                 long long slices, Exchange* exchange, int* given_up, long long limit_ns) {
    constexpr int WARPS = THREADS / 32;
    extern __shared__ __align__(128) uint4 slots[];
    __shared__ RingState<SLOTS, WARPS> state;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) {
            state.full[i].init(32);
            state.merged[i].init(1);
            state.empty[i].init(WARPS);
        }
        fence_barrier_init();
    }
    __syncthreads();
    const Patience patience = {exchange, given_up, launch_number(exchange), (unsigned long long)limit_ns};
    const Ring<T, SLOTS, THREADS, VECTORS, SURE> role = {x, y, rows, x_stride, length, (int)slices, patience, slots, state};
    const Turn<SLOTS> first((int)slices);
    const int warp = threadIdx.x / 32;
    if (warp < WARPS) {
        role.reduce(first);
    } else if (warp < 2 * WARPS) {
        role.finish(first);
    } else if (warp == 2 * WARPS) {
        role.merge_rows(first);
    } else {
        role.load(first);
    }
    leave(exchange);
}

#endif
