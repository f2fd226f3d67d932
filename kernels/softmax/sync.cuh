// Barriers and copies that PTX has and CUDA C++ has not. From sm_90 on. No wait here is for ever.
#pragma once

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// What is waited for inside a block or a cluster comes, by the kernel's design and the hardware's promise that a cluster
// runs together. Should that be mistaken, the kernel ends in a trap, which is an error of the launch.
constexpr unsigned long long NEVER_NS = 60'000'000'000;

__device__ inline unsigned shared_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

__device__ inline unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// mbarrier of PTX: a phase ends when so many have arrived, and so many bytes, as were expected.
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
    // Arrives when all copies of 16 bytes that this thread has begun are there.
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
    // For the end of a phase of this parity; the first phase has 0.
    __device__ void wait(int parity) const {
        if (passed(parity)) return;
        const unsigned long long start = nanoseconds();
        while (!passed(parity)) {
            if (nanoseconds() - start > NEVER_NS) __trap();
        }
    }
};

// After init, so that copies and other blocks of the cluster see the barrier.
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

// Relaxed: what is told by it, that the barriers are there, has its own fence. A release would wait for the loads.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Writes two floats to the same place in the block `rank` of the cluster, and counts 8 bytes on its barrier.
__device__ inline void send(float first, float second, const void* to, const Barrier& barrier, int rank) {
    asm volatile(
        "{ .reg .b32 to, barrier; mapa.shared::cluster.u32 to, %0, %2; mapa.shared::cluster.u32 barrier, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%3, %4}, [barrier]; }" ::"r"(shared_address(to)),
        "r"(barrier.address()), "r"(rank), "f"(first), "f"(second)
        : "memory");
}

#endif
