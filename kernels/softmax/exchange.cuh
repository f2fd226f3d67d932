// How the blocks of one launch tell each other what a slice adds to its row.
//
// They all run at once, for the launch is cooperative; so what is waited for comes, by the kernel's design. Should that be
// mistaken, a wait has a limit: the row becomes NaN, all others of the launch give up as well, and the host is told.
#pragma once

#include "row.cuh"
#include "sync.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// In global memory, all zero before the first launch; each launch leaves it ready for the next, of any shape but of as many
// blocks. Launches that may run at the same time need one each.
struct Exchange {
    unsigned long long left;      // blocks that were done, in all launches
    unsigned long long given_up;  // the number of the last launch that did
    unsigned long long unused[14];
    ulonglong2 told[1];  // by each slice: its partial, and the number of the launch, written and read as one
};

// Of a launch, from 1 on: what its slices are stamped with, so that nothing needs to be cleared. By a block that has not
// left: so not all of this launch have.
__device__ inline unsigned long long launch_number(const Exchange* exchange) {
    return *(const volatile unsigned long long*)&exchange->left / gridDim.x + 1;
}

// By each block at its end.
__device__ inline void leave(Exchange* exchange) {
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&exchange->left, 1ull);
}

__device__ inline void tell(Exchange* exchange, long long slice, Partial part, unsigned long long launch) {
    const unsigned long long pair = (unsigned long long)__float_as_uint(part.sum) << 32 | __float_as_uint(part.largest);
    asm volatile("{ .reg .b128 both; mov.b128 both, {%1, %2}; st.relaxed.gpu.global.b128 [%0], both; }" ::"l"(
                     &exchange->told[slice]),
                 "l"(pair), "l"(launch)
                 : "memory");
}

__device__ inline void hear(const Exchange* exchange, long long slice, Partial& part, unsigned long long& launch) {
    unsigned long long pair;
    asm volatile("{ .reg .b128 both; ld.relaxed.gpu.global.b128 both, [%2]; mov.b128 {%0, %1}, both; }"
                 : "=l"(pair), "=l"(launch)
                 : "l"(&exchange->told[slice])
                 : "memory");
    part = {__uint_as_float((unsigned)pair), __uint_as_float((unsigned)(pair >> 32))};
}

// What is waited for: at most limit_ns, and no longer if another block of this launch has given up.
struct Patience {
    static constexpr int TRIES = 64;  // between two looks at the clock
    Exchange* exchange;
    int* given_up_on_host;
    unsigned long long launch, limit_ns;

    __device__ bool ends(int tries, unsigned long long& start) const {
        if (tries % TRIES != TRIES - 1) return false;
        const unsigned long long now = nanoseconds();
        if (start == 0) start = now;
        unsigned long long given_up;
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(given_up) : "l"(&exchange->given_up) : "memory");
        const bool late = now - start > limit_ns;
        if (late) {
            asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(&exchange->given_up), "l"(launch) : "memory");
            asm volatile("st.relaxed.sys.global.u32 [%0], 1;" ::"l"(given_up_on_host) : "memory");
        }
        return __any_sync(ALL_LANES, late || given_up == launch);
    }
};

// By one warp: the partial of the row whose slices begin at `first`.
__device__ inline Partial gather(const Patience& patience, long long first, int slices) {
    constexpr int AT_ONCE = 4;  // loads of a lane on their way
    Partial all = {-infinity(), 0.0f};
    for (int begin = threadIdx.x % 32; begin - (int)(threadIdx.x % 32) < slices; begin += 32 * AT_ONCE) {
        Partial part[AT_ONCE];
        unsigned long long start = 0;
        for (int tries = 0;; tries++) {
            unsigned long long launch[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                part[i] = {-infinity(), 0.0f};
                launch[i] = patience.launch;
                if (begin + 32 * i < slices) hear(patience.exchange, first + begin + 32 * i, part[i], launch[i]);
            }
            bool there = true;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) there &= launch[i] == patience.launch;
            if (__all_sync(ALL_LANES, there)) break;
            if (patience.ends(tries, start)) return {not_a_number(), 1.0f};
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) all = merge(all, part[i]);
    }
    return merge_lanes<32>(all);
}

#endif
