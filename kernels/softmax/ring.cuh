// Rows that are too long for a block or a small cluster: read once, through a ring of slots in every multiprocessor's shared
// memory. From sm_90 on.
//
// A row is cut into slices of at most a slot. The warps of a block have roles, and each role goes through the slots in turn:
// the loader fills one, the reducers find its partial and tell the others, the gatherer merges what all told of that row,
// and the finishers write its weights and free the slot. The reducers run ahead of the finishers by up to the ring, so that
// the wait for the other slices of a row hides behind the loads of other rows.
#pragma once

#include "exchange.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

enum Fill {
    COPY,  // by copies of sixteen bytes, as ordinary loads are
    BULK   // by the copy engine
};

constexpr int NONE = -1;  // instead of a row: there is no more

struct Slice {
    int row, place;
};

template <int SLOTS, int WARPS>
struct RingState {
    Barrier full[SLOTS];    // the slot holds its slice
    Barrier merged[SLOTS];  // the slice's row is known
    Barrier empty[SLOTS];   // the slot can be filled
    Slice slice[SLOTS];
    Partial row[SLOTS];
    Partial part[2][WARPS];
};

// Where a role is in the ring.
template <int SLOTS>
struct Turn {
    int slot = 0, parity = 0;
    __device__ void next() {
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        parity ^= slot == 0;
    }
};

// A slot is THREADS * VECTORS vectors; of a thread's, the first SURE are in every slice. BLOCKS on a multiprocessor.
template <typename T, int SLOTS, int THREADS, int VECTORS, int SURE, Fill FILL, int BLOCKS>
struct Ring {
    static constexpr int SLOT = THREADS * VECTORS;
    static constexpr int WARPS = THREADS / 32;  // of the reducers, and of the finishers
    static constexpr int PIECE = 1024;          // vectors of one bulk copy

    const uint4* x;
    uint4* y;
    long long rows, x_stride, length;  // in vectors
    int slices;                        // of a row
    Patience patience;
    uint4* slots;
    RingState<SLOTS, WARPS>& state;

    __device__ int slice_length() const { return ((int)length + slices - 1) / slices; }
    __device__ int begin_of(Slice slice) const { return slice.place * slice_length(); }
    __device__ int length_of(Slice slice) const { return min(slice_length(), (int)length - begin_of(slice)); }
    __device__ uint4* slot_at(const Turn<SLOTS>& turn) const { return slots + turn.slot * SLOT; }

    __device__ void load() const {
        const int lane = threadIdx.x % 32;
        const long long all = rows * slices;
        long long index = 0, upcoming = 0;
        Turn<SLOTS> turn;
        for (int count = 0;; count++, turn.next()) {
            if (count >= SLOTS) state.empty[turn.slot].wait(turn.parity ^ 1);
            if (lane == 0) {
                // As many as there are slots at once, then each a turn before it is needed.
                index = count == 0 ? take(patience.exchange, SLOTS) : count < SLOTS ? index + 1 : upcoming;
                if (count >= SLOTS - 1 && index < all) upcoming = take(patience.exchange, 1);
            }
            index = __shfl_sync(ALL_LANES, index, 0);
            if (index >= all) break;
            const int row = (unsigned)index / (unsigned)slices;
            const Slice slice = {row, (int)(index - (long long)row * slices)};
            if (lane == 0) state.slice[turn.slot] = slice;
            fill(turn, slice);
        }
        if (lane == 0) state.slice[turn.slot].row = NONE;
        fill(turn, {NONE, 0});
    }

    __device__ void fill(const Turn<SLOTS>& turn, Slice slice) const {
        const int lane = threadIdx.x % 32;
        const int count = slice.row == NONE ? 0 : length_of(slice);
        const uint4* from = x + slice.row * x_stride + begin_of(slice);
        uint4* to = slot_at(turn);
        Barrier& full = state.full[turn.slot];
        if constexpr (FILL == BULK) {
            if (lane == 0) {
                full.arrive_and_expect(count * 16);
                for (int i = 0; i < count; i += PIECE) copy_bulk(to + i, from + i, min(PIECE, count - i) * 16, full);
            }
            __syncwarp();
        } else {
#pragma unroll 8
            for (int i = lane; i < count; i += 32) copy_16_bytes(to + i, from + i);
            full.arrive_after_copies();
            if (lane == 0) full.arrive();  // for state.slice, which the other arrivals do not wait for
        }
    }

    __device__ void reduce() const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        int side = 0;
        for (Turn<SLOTS> turn;; turn.next(), side ^= 1) {
            state.full[turn.slot].wait(turn.parity);
            const Slice slice = state.slice[turn.slot];
            if (slice.row == NONE) break;
            const uint4* slot = slot_at(turn);
            const int left = length_of(slice) - threadIdx.x;
            uint4 v[VECTORS];
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                v[i] = i < SURE || i * THREADS < left ? slot[i * THREADS + threadIdx.x] : lowest<T>();
            }
            const Partial part = partial_of<T, 32>(v);
            if (lane == 0) state.part[side][warp] = part;
            sync_threads(1, THREADS);
            if (warp == 0) {
                const Partial whole = merge_lanes<WARPS>(state.part[side][lane % WARPS]);
                if (lane == 0) tell(patience.exchange, slice.row * (long long)slices + slice.place, whole, patience.launch);
            }
        }
    }

    __device__ void merge_rows() const {
        for (Turn<SLOTS> turn;; turn.next()) {
            state.full[turn.slot].wait(turn.parity);
            const Slice slice = state.slice[turn.slot];
            if (slice.row == NONE) break;
            const Partial row = gather(patience, slice.row * (long long)slices, slices);
            if (threadIdx.x % 32 == 0) {
                state.row[turn.slot] = row;
                state.merged[turn.slot].arrive();
            }
        }
    }

    __device__ void finish(int thread) const {
        for (Turn<SLOTS> turn;; turn.next()) {
            state.full[turn.slot].wait(turn.parity);
            const Slice slice = state.slice[turn.slot];
            if (slice.row == NONE) break;
            const uint4* slot = slot_at(turn) + thread;
            uint4 v[VECTORS];
#pragma unroll
            for (int i = 0; i < VECTORS; i++) v[i] = slot[i * THREADS];
            state.merged[turn.slot].wait(turn.parity);
            const Weights<T> weights(state.row[turn.slot]);
            const int left = length_of(slice) - thread;
            uint4* to = y + slice.row * length + begin_of(slice) + thread;
            __syncwarp();
            if (thread % 32 == 0) state.empty[turn.slot].arrive();  // it can be filled while this is written
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                if (i < SURE || i * THREADS < left) to[i * THREADS] = weights(v[i]);
            }
        }
    }
};

template <typename T, int SLOTS, int THREADS, int VECTORS, int SURE, Fill FILL, int BLOCKS>
__global__ void __launch_bounds__(2 * THREADS + 64, BLOCKS)
    softmax_ring(const uint4* __restrict__ x, uint4* __restrict__ y, long long rows, long long x_stride, long long length,
                 long long slices, Exchange* exchange, int* given_up, long long limit_ns) {
    constexpr int WARPS = THREADS / 32;
    extern __shared__ __align__(128) uint4 slots[];
    __shared__ RingState<SLOTS, WARPS> state;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) {
            state.full[i].init(FILL == BULK ? 1 : 33);
            state.merged[i].init(1);
            state.empty[i].init(WARPS);
        }
        fence_barrier_init();
    }
    __syncthreads();
    const Patience patience = {exchange, given_up, launch_number(exchange), (unsigned long long)limit_ns};
    using Roles = Ring<T, SLOTS, THREADS, VECTORS, SURE, FILL, BLOCKS>;
    const Roles roles = {x, y, rows, x_stride, length, (int)slices, patience, slots, state};
    const int warp = threadIdx.x / 32;
    if (warp < WARPS) {
        roles.reduce();
    } else if (warp < 2 * WARPS) {
        roles.finish(threadIdx.x - THREADS);
    } else if (warp == 2 * WARPS) {
        roles.merge_rows();
    } else {
        roles.load();
    }
    leave(exchange);
}

#endif
