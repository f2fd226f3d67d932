// How the blocks of one launch exchange the partials of their slices.
//
// All blocks run at once, since the launch is cooperative, so by the kernel's design every wait ends. As a safeguard each
// wait has a time limit. After it the row becomes NaN, the other blocks of the launch stop waiting too, and a flag tells the
// host.
#pragma once

#include "row.cuh"
#include "sync.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Global memory, all zeros before the first launch. Each launch leaves it ready for the next one, of any shape but with the
// same number of blocks. Launches that may run at the same time need separate memory.
struct Exchange {
    unsigned long long finished;   // blocks that have finished, over all launches
    unsigned long long timed_out;  // the number of the last launch that timed out
    unsigned long long unused[14];
    ulonglong2 partials[1];  // of each slice: its partial and the number of its launch, written and read together
};

// The number of this launch, from 1 on. Slices are marked with it, so that nothing needs to be cleared. Call it in a block
// that has not finished; the division then ignores those of this launch that have.
__device__ inline unsigned long long launch_number(const Exchange* exchange) {
    return *(const volatile unsigned long long*)&exchange->finished / gridDim.x + 1;
}

// Each block calls it at its end.
__device__ inline void finish_block(Exchange* exchange) {
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&exchange->finished, 1ull);
}

__device__ inline void publish(Exchange* exchange, long long slice, Partial part, unsigned long long launch) {
    const unsigned long long pair = (unsigned long long)__float_as_uint(part.sum) << 32 | __float_as_uint(part.largest);
    asm volatile("{ .reg .b128 both; mov.b128 both, {%1, %2}; st.relaxed.gpu.global.b128 [%0], both; }" ::"l"(
                     &exchange->partials[slice]),
                 "l"(pair), "l"(launch)
                 : "memory");
}

__device__ inline void read(const Exchange* exchange, long long slice, Partial& part, unsigned long long& launch) {
    unsigned long long pair;
    asm volatile("{ .reg .b128 both; ld.relaxed.gpu.global.b128 both, [%2]; mov.b128 {%0, %1}, both; }"
                 : "=l"(pair), "=l"(launch)
                 : "l"(&exchange->partials[slice])
                 : "memory");
    part = {__uint_as_float((unsigned)pair), __uint_as_float((unsigned)(pair >> 32))};
}

// The time limit of waits: limit_ns, or until another block of this launch times out.
struct Timeout {
    static constexpr int TRIES = 64;  // between two readings of the clock
    Exchange* exchange;
    int* host_flag;
    unsigned long long launch, limit_ns;

    __device__ bool reached(int tries, unsigned long long& start) const {
        if (tries % TRIES != TRIES - 1) return false;
        const unsigned long long now = nanoseconds();
        if (start == 0) start = now;
        unsigned long long timed_out;
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(timed_out) : "l"(&exchange->timed_out) : "memory");
        const bool late = now - start > limit_ns;
        if (late) {
            asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(&exchange->timed_out), "l"(launch) : "memory");
            asm volatile("st.relaxed.sys.global.u32 [%0], 1;" ::"l"(host_flag) : "memory");
        }
        return __any_sync(ALL_LANES, late || timed_out == launch);
    }
};

// Waits for all slices of a row and merges their partials. `first` is the row's first slice. One warp calls it.
__device__ inline Partial gather(const Timeout& timeout, long long first, int slices) {
    constexpr int AT_ONCE = 4;  // loads of a lane in flight
    Partial all = {-infinity(), 0.0f};
    for (int begin = threadIdx.x % 32; begin - (int)(threadIdx.x % 32) < slices; begin += 32 * AT_ONCE) {
        Partial part[AT_ONCE];
        unsigned long long start = 0;
        for (int tries = 0;; tries++) {
            unsigned long long launch[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                part[i] = {-infinity(), 0.0f};
                launch[i] = timeout.launch;
                if (begin + 32 * i < slices) read(timeout.exchange, first + begin + 32 * i, part[i], launch[i]);
            }
            bool there = true;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) there &= launch[i] == timeout.launch;
            if (__all_sync(ALL_LANES, there)) break;
            if (timeout.reached(tries, start)) return {not_a_number(), 1.0f};
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) all = merge(all, part[i]);
    }
    return merge_lanes<32>(all);
}

#endif
