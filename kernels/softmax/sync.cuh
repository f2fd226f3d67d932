// Barriers and copies that exist in PTX but not in CUDA C++. Requires sm_90. Every wait here ends.
#pragma once

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// By the kernel's design, and since the hardware runs all blocks of a cluster together, a wait inside a block or a cluster
// always ends. If it did not, because of a mistake, the kernel would trap after this time, and the launch would fail.
constexpr unsigned long long NEVER_NS = 60'000'000'000;

__device__ inline unsigned shared_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

__device__ inline unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// PTX's mbarrier: a phase completes when the expected number of threads, and of bytes, have arrived.
struct Barrier {
    unsigned long long word;

    __device__ unsigned address() const { return shared_address(&word); }
    __device__ void init(int arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
    }
    __device__ void arrive() {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
    }
    __device__ void arrive_and_expect(int bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
    }
    // Arrives when all copies of 16 bytes that this thread has started are complete.
    __device__ void arrive_after_copies() {
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address()) : "memory");
    }
    __device__ bool passed(int parity) const {
        unsigned done;
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(address()), "r"(parity)
            : "memory");
        return done;
    }
    // Waits until the phase of this parity is complete. The first phase has parity 0.
    __device__ void wait(int parity) const {
        if (passed(parity)) return;
        const unsigned long long start = nanoseconds();
        while (!passed(parity)) {
            if (nanoseconds() - start > NEVER_NS) __trap();
        }
    }
};

// Call it after init, so that copies and the other blocks of the cluster see the barrier.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void sync_threads(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

__device__ inline void copy_16_bytes(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

__device__ inline int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Relaxed, since fence_barrier_init already publishes the barriers. A release would also wait for the loads.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Writes two floats to the same address in block `rank` of the cluster, and counts 8 bytes on that block's barrier.
__device__ inline void send(float first, float second, const void* to, const Barrier& barrier, int rank) {
    asm volatile(
        "{ .reg .b32 to, barrier; mapa.shared::cluster.u32 to, %0, %2; mapa.shared::cluster.u32 barrier, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%3, %4}, [barrier]; }" ::"r"(shared_address(to)),
        "r"(barrier.address()), "r"(rank), "f"(first), "f"(second)
        : "memory");
}

#endif
