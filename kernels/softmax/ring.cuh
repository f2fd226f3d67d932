// Rows that are too long for the registers of a cluster. They are read once, through a ring of slots in the shared memory of
// every multiprocessor. Needs sm_90.
//
// A row is cut into slices that fit into a slot, and the slices of all rows are dealt to the blocks in turn. The warps of a
// block are specialized, and each role visits all slices of the block. The loader fills a slot. The reducers compute its
// partial and publish it. The gatherer merges the partials of the whole row. The finishers write the weights and free the
// slot. The reducers may be ahead of the finishers by the length of the ring, so that the wait for the other slices of a row
// is hidden behind the loads of other rows.
//
// There is no deadlock, since all blocks run (the launch is cooperative) and no block has more slices of a row than slots.
// So for the earliest unwritten row, every block can load its slices once it has written the rows before.
#pragma once

#include "exchange.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

template <int SLOTS, int WARPS>
struct RingState {
    Barrier full[SLOTS];    // the slot holds its slice
    Barrier merged[SLOTS];  // the result of the slice's row is known
    Barrier empty[SLOTS];   // the slot may be filled
    Partial row[SLOTS];
    Partial part[2][WARPS];
};

// The position of a role: row, slice of the row, slot, and parity of the slot's phase.
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

// A slot has THREADS * VECTORS vectors. The first SURE vectors of a thread are inside every slice.
template <typename T, int SLOTS, int THREADS, int VECTORS, int SURE, bool EDGES>
struct Ring {
    static constexpr int SLOT = THREADS * VECTORS;
    static constexpr int WARPS = THREADS / 32;  // warps of the reducers, and as many of the finishers
    using At = Turn<SLOTS>;

    const uint4* x;
    uint4* y;
    long long rows, x_stride, length;
    int slices;                        // slices of a row
    Timeout timeout;
    uint4* slots;
    RingState<SLOTS, WARPS>& state;

    // A slice of a row. The first one has the row's edges.
    struct Slice {
        Row<T, EDGES> row;
        int place, begin, length;

        __device__ Slice(const Ring& ring, const At& at)
            : row(ring.x, ring.y, at.row, ring.x_stride, ring.length), place(at.place) {
            const int longest = (row.vectors + ring.slices - 1) / ring.slices;
            begin = place * longest;
            length = min(longest, row.vectors - begin);
        }
        __device__ float load_edge(int thread) const { return place == 0 ? row.load_edge(thread) : -infinity(); }
        __device__ void store_edge(int thread, float value) const {
            if (place == 0) row.store_edge(thread, value);
        }
    };

    __device__ void fill(const At& at) const {
        const Slice slice(*this, at);
        const int count = slice.length;
        const uint4* from = slice.row.x + slice.begin;
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
            const Slice slice(*this, at);
            const int left = slice.length - threadIdx.x;
            const float edge = slice.load_edge(threadIdx.x);
            state.full[at.slot].wait(at.parity);
            uint4 v[VECTORS];
#pragma unroll
            for (int i = 0; i < VECTORS; i++) v[i] = i < SURE || i * THREADS < left ? slot[i * THREADS] : lowest<T>();
            const Partial part = partial_of<T, 32, EDGES>(v, edge);
            if (lane == 0) state.part[side][warp] = part;
            sync_threads(1, THREADS);
            if (warp == 0) {
                const Partial whole = merge_lanes<WARPS>(state.part[side][lane % WARPS]);
                if (lane == 0) publish(timeout.exchange, at.row * slices + at.place, whole, timeout.launch);
            }
        }
    }

    __device__ void merge_rows(At at) const {
        for (; at.row < rows; at.next()) {
            state.full[at.slot].wait(at.parity);
            const Partial row = gather(timeout, at.row * slices, slices);
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
            const Slice slice(*this, at);
            const int left = slice.length - thread;
            uint4* to = slice.row.y + slice.begin + thread;
            const float edge = slice.load_edge(thread);
            state.full[at.slot].wait(at.parity);
            uint4 v[VECTORS];
#pragma unroll
            for (int i = 0; i < VECTORS; i++) v[i] = slot[i * THREADS];
            state.merged[at.slot].wait(at.parity);
            const Weights<T> weights(state.row[at.slot]);
            __syncwarp();
            if (thread % 32 == 0) state.empty[at.slot].arrive();  // the slot may be filled during the writes below
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                if (i < SURE || i * THREADS < left) to[i * THREADS] = weights(v[i]);
            }
            slice.store_edge(thread, weights(edge));
        }
    }
};

template <typename T, int SLOTS, int THREADS, int VECTORS, int SURE, bool EDGES>
__global__ void __launch_bounds__(2 * THREADS + 64, 1)
    softmax_ring(const uint4* __restrict__ x, uint4* __restrict__ y, long long rows, long long x_stride, long long length,
                 long long slices, Exchange* exchange, int* host_flag, long long limit_ns) {
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
    const Timeout timeout = {exchange, host_flag, launch_number(exchange), (unsigned long long)limit_ns};
    const Ring<T, SLOTS, THREADS, VECTORS, SURE, EDGES> role = {x, y, rows, x_stride, length, (int)slices, timeout, slots, state};
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
    finish_block(exchange);
}

#endif
