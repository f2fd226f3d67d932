// Barriers and copies that PTX has and CUDA C++ has not, and waits that end.
#pragma once

typedef unsigned long long u64;

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// A wait inside a CTA or a cluster can only be for what is sure to come; it ends in a trap if a mistake made that wrong.
constexpr u64 NEVER_NS = 20'000'000'000ull;

struct Barrier {
  u64 word;

  __device__ __forceinline__ unsigned at() const { return shared_address(&word); }
  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at()), "r"(arrivals) : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at()) : "memory");
  }
  __device__ __forceinline__ void arrive_and_expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at()), "r"(bytes) : "memory");
  }
  // Arrives when all cp.async of this thread so far have.
  __device__ __forceinline__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at()) : "memory");
  }
  __device__ __forceinline__ bool passed(unsigned parity) const {
    unsigned done;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(at()), "r"(parity)
        : "memory");
    return done;
  }
  __device__ __forceinline__ void wait(unsigned parity) const {
    if (passed(parity)) return;
    const u64 start = nanoseconds();
    while (!passed(parity)) {
      if (nanoseconds() - start > NEVER_NS) __trap();
    }
  }
};

__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void sync_threads(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// ---- copies from global to shared memory

__device__ __forceinline__ void copy_16_bytes(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

__device__ __forceinline__ void copy_bulk(void* to, const void* from, int bytes, const Barrier& done) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(done.at())
      : "memory");
}

// ---- clusters

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Writes a pair to the same place in the CTA ``rank`` of this cluster, and counts its 8 bytes on that CTA's barrier.
__device__ __forceinline__ void send(unsigned rank, const void* to, float first, float second, const Barrier& done) {
  asm volatile(
      "{ .reg .b32 to, bar; mapa.shared::cluster.u32 to, %0, %2; mapa.shared::cluster.u32 bar, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%3, %4}, [bar]; }" ::"r"(shared_address(to)),
      "r"(done.at()), "r"(rank), "f"(first), "f"(second)
      : "memory");
}
