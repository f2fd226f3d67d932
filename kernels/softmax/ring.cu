// Softmax of rows that no CTA can hold: read once, by a ring of slots in the shared memory of every multiprocessor.
//
// A row is cut into slices of at most a slot. The warps of a CTA have roles, and each role goes through the CTA's slots in
// turn: the producer fills one, a group of warps finds the (largest, sum) of the slice and publishes it, the gatherer
// merges what all CTAs published of that row, and the finishers write the slice's weights and give the slot back. The
// groups run ahead of the finishers by up to the ring, so what one row waits for hides behind the loads of others.
//
// CLUSTER = 0: the slices of a row are with any CTAs of the grid. They are handed out by a counter, in order, so a row's
// are all taken before any of the next; whoever holds one of the earliest unfinished row waits for nobody else. A slice's
// pair is one word of 128 bits with the number of the launch in it: it is written and read whole, and needs no clearing.
// CLUSTER > 0: the slices of a row are with the CTAs of one cluster, and pairs go through distributed shared memory.
#include "row.cuh"
#include "sync.cuh"

// What the CTAs of a launch share. Launches that may run at once must not share it. Zero at first; a launch leaves it ready
// for the next one, of whatever shape.
struct Shared {
  u64 taken;     // slices handed out
  u64 finished;  // CTAs that are done
  u64 launches;  // so far
  u64 failed;    // the launch that gave up waiting, plus 1
  u64 spare[12];
  ulonglong2 words[1];  // a slice's: (largest, sum), launch + 1
};

enum Fill { BULK, COPY, COPY_FAR, THROUGH_REGISTERS };

constexpr int NO_SLICE = -1;

template <class T, int SLOTS, int THREADS, int GROUPS, int VECTORS, int FINISHERS, int FILL, int CLUSTER, bool TICKETS,
          bool ONLY_COPY, int CTAS>
struct Ring {
  static constexpr int SLOT = THREADS * VECTORS;  // vectors
  static constexpr int WARPS = THREADS / 32;
  static constexpr int STATISTICIANS = THREADS * GROUPS;
  static constexpr int ALL = STATISTICIANS + FINISHERS + 64;
  static constexpr int EACH = SLOT / FINISHERS;  // vectors of a finisher
  static constexpr int CHUNK = EACH < 8 ? EACH : 8;
  static constexpr int PEERS = CLUSTER > 0 ? CLUSTER : 1;
  static constexpr int SENT = 2 * SLOTS;  // rows whose pairs may be here: a peer may be a ring ahead
  static constexpr bool LOADED_BY_GROUPS = FILL == THROUGH_REGISTERS;

  struct Work {
    int row, slice;
  };

  struct Memory {
    uint4 slots[SLOTS][SLOT];
    Barrier taken[SLOTS];   // the slot has work
    Barrier full[SLOTS];    // and its slice
    Barrier merged[SLOTS];  // the row is known
    Barrier empty[SLOTS];   // the slot is free
    Barrier received[SENT];
    Partial sent[SENT][PEERS];
    Partial rows[SLOTS];
    Work work[SLOTS];
    Partial parts[GROUPS][2][WARPS];
  };

  const uint4* x;
  uint4* y;
  long long x_stride;  // vectors
  int vectors;         // of a row
  int slices;          // of a row
  int slice_vectors;   // of a slice but the last
  long long rows;
  Shared* shared;
  int* failure;  // on the host
  u64 limit_ns;
  Memory& memory;

  // Goes through the slots.
  struct Turn {
    int slot = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void next() {
      if (++slot == SLOTS) {
        slot = 0;
        parity ^= 1;
      }
    }
    __device__ __forceinline__ void skip(int count) {
      for (int i = 0; i < count; i++) next();
    }
  };

  __device__ __forceinline__ int length(int slice) const { return min(slice_vectors, vectors - slice * slice_vectors); }
  __device__ __forceinline__ const uint4* source(Work work) const {
    return x + work.row * x_stride + static_cast<long long>(work.slice) * slice_vectors;
  }

  // ---- the producer: one warp

  __device__ __forceinline__ void produce() {
    const int lane = threadIdx.x % 32;
    const long long all = CLUSTER > 0 ? rows : rows * slices;
    long long mine = CLUSTER > 0 ? blockIdx.x / PEERS : blockIdx.x;
    const long long step = CLUSTER > 0 ? gridDim.x / PEERS : gridDim.x;
    long long upcoming = 0;
    if (TICKETS && lane == 0) mine = atomicAdd(&shared->taken, static_cast<u64>(SLOTS));
    int ends = GROUPS;  // each group meets one
    Turn turn;
    for (int count = 0;; count++) {
      if (count >= SLOTS) memory.empty[turn.slot].wait(turn.parity ^ 1);
      if constexpr (TICKETS) {
        if (lane == 0) {
          if (count > 0 && mine < all) mine = count < SLOTS ? mine + 1 : upcoming;
          // The next one is asked for before it is needed.
          if (count >= SLOTS - 1 && mine < all) upcoming = atomicAdd(&shared->taken, 1ull);
        }
        mine = __shfl_sync(ALL_LANES, mine, 0);
      }
      Work work = {NO_SLICE, 0};
      if (mine < all) {
        if constexpr (CLUSTER > 0) {
          work = {static_cast<int>(mine), static_cast<int>(cluster_rank())};
        } else {
          const unsigned row = static_cast<unsigned>(mine) / static_cast<unsigned>(slices);
          work = {static_cast<int>(row), static_cast<int>(mine - static_cast<long long>(row) * slices)};
        }
      }
      if (lane == 0) memory.work[turn.slot] = work;
      fill(turn.slot, work, lane);
      turn.next();
      if (work.row == NO_SLICE && --ends == 0) break;
      if (!TICKETS) mine += step;
    }
  }

  __device__ __forceinline__ void fill(int slot, Work work, int lane) {
    if constexpr (LOADED_BY_GROUPS) {
      if (lane == 0) memory.taken[slot].arrive();
      return;
    }
    const bool any = work.row != NO_SLICE;
    const int count = any ? length(work.slice) : 0;
    const uint4* from = any ? source(work) : x;
    if constexpr (FILL == BULK) {
      if (lane == 0) {
        memory.full[slot].arrive_and_expect(count * 16);
        // Several, since a copy of 0 bytes is not allowed and a large one holds up the next.
        constexpr int PIECE = 1024;
        for (int i = 0; i < count; i += PIECE) {
          copy_bulk(&memory.slots[slot][i], from + i, min(PIECE, count - i) * 16, memory.full[slot]);
        }
      }
      __syncwarp();
    } else {
      uint4* to = memory.slots[slot];
#pragma unroll 8
      for (int i = lane; i < count; i += 32) {
        if constexpr (FILL == COPY_FAR) {
          asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared_address(to + i)), "l"(from + i)
                       : "memory");
        } else {
          copy_16_bytes(to + i, from + i);
        }
      }
      memory.full[slot].arrive_after_copies();
      if (lane == 0) memory.full[slot].arrive();  // work[slot] is written
    }
  }

  // ---- the statisticians: GROUPS of THREADS, each with every GROUPS-th slot

  __device__ __forceinline__ void reduce(u64 launch) {
    const int group = threadIdx.x / THREADS;
    const int thread = threadIdx.x % THREADS;
    const int warp = thread / 32;
    const int lane = threadIdx.x % 32;
    Turn turn;
    turn.skip(group);
    unsigned side = 0;
    for (int count = group;; count += GROUPS) {
      (LOADED_BY_GROUPS ? memory.taken : memory.full)[turn.slot].wait(turn.parity);
      const Work work = memory.work[turn.slot];
      if (work.row == NO_SLICE) break;
      uint4* slot = memory.slots[turn.slot];
      const int size = length(work.slice);
      uint4 v[VECTORS];
      if constexpr (LOADED_BY_GROUPS) {
        const uint4* from = source(work);
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
          const int at = i * THREADS + thread;
          v[i] = at < size ? from[at] : lowest<T>();
        }
      } else {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
          const int at = i * THREADS + thread;
          v[i] = at < size ? slot[at] : lowest<T>();
        }
      }
      Partial part = {0.f, 1.f};
      if constexpr (!ONLY_COPY) part = partial_of<T, 32>(v);
      if constexpr (LOADED_BY_GROUPS) {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) slot[i * THREADS + thread] = v[i];
        __syncwarp();
        if (lane == 0) memory.full[turn.slot].arrive();
      }
      if constexpr (!ONLY_COPY) {
        if (lane == 0) memory.parts[group][side][warp] = part;
        sync_threads(1 + group, THREADS);
        if (warp == 0) publish(work, count, merge_lanes<WARPS>(memory.parts[group][side][lane % WARPS]), lane, launch);
        side ^= 1;
      }
      turn.skip(GROUPS);
    }
  }

  __device__ __forceinline__ void publish(Work work, int count, Partial part, int lane, u64 launch) {
    if constexpr (CLUSTER > 0) {
      const int place = count % SENT;
      if (lane == 0) memory.received[place].arrive_and_expect(CLUSTER * sizeof(Partial));
      if (lane < CLUSTER) send(lane, &memory.sent[place][work.slice], part.largest, part.sum, memory.received[place]);
    } else if (lane == 0) {
      const u64 pair = static_cast<u64>(__float_as_uint(part.sum)) << 32 | __float_as_uint(part.largest);
      asm volatile("{ .reg .b128 word; mov.b128 word, {%1, %2}; st.relaxed.gpu.global.b128 [%0], word; }" ::"l"(
                       &shared->words[static_cast<long long>(work.row) * slices + work.slice]),
                   "l"(pair), "l"(launch + 1)
                   : "memory");
    }
  }

  // ---- the gatherer: one warp

  __device__ __forceinline__ void gather(u64 launch) {
    const int lane = threadIdx.x % 32;
    Turn turn;
    for (int count = 0;; count++) {
      (LOADED_BY_GROUPS ? memory.taken : memory.full)[turn.slot].wait(turn.parity);
      const Work work = memory.work[turn.slot];
      if (work.row == NO_SLICE) break;
      Partial row;
      if constexpr (CLUSTER > 0) {
        const int place = count % SENT;
        memory.received[place].wait(count / SENT & 1);
        row = merge_lanes<PEERS>(memory.sent[place][lane % PEERS]);
      } else {
        row = poll(work.row, lane, launch);
      }
      if (lane == 0) {
        memory.rows[turn.slot] = row;
        memory.merged[turn.slot].arrive();
      }
      turn.next();
    }
  }

  __device__ __forceinline__ Partial poll(int row, int lane, u64 launch) {
    constexpr int AT_ONCE = 4;  // loads of a lane under way
    const ulonglong2* words = shared->words + static_cast<long long>(row) * slices;
    Partial all = {-infinity(), 0.f};
    for (int begin = 0; begin < slices; begin += 32 * AT_ONCE) {
      u64 pair[AT_ONCE], number[AT_ONCE];
      u64 start = 0;
      for (int tries = 0;; tries++) {
        bool there = true;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
          const int slice = begin + i * 32 + lane;
          number[i] = launch + 1;
          if (slice < slices) {
            asm volatile("{ .reg .b128 word; ld.relaxed.gpu.global.b128 word, [%2]; mov.b128 {%0, %1}, word; }"
                         : "=l"(pair[i]), "=l"(number[i])
                         : "l"(words + slice)
                         : "memory");
          }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) there &= number[i] == launch + 1;
        if (__all_sync(ALL_LANES, there)) break;
        if (tries % 64 == 63 && gives_up(start, lane, launch)) return {__int_as_float(0x7fffffff), 1.f};
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        if (begin + i * 32 + lane < slices) {
          all = merge(all, {__uint_as_float(static_cast<unsigned>(pair[i])),
                            __uint_as_float(static_cast<unsigned>(pair[i] >> 32))});
        }
      }
    }
    return merge_lanes<32>(all);
  }

  // Waited longer than the limit, or another CTA has: the row is NaN, and the host is told.
  __device__ __forceinline__ bool gives_up(u64& start, int lane, u64 launch) {
    const u64 now = nanoseconds();
    if (start == 0) start = now;
    u64 failed;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(failed) : "l"(&shared->failed) : "memory");
    const bool late = now - start > limit_ns;
    if (late && lane == 0) {
      asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(&shared->failed), "l"(launch + 1) : "memory");
      asm volatile("st.relaxed.sys.global.u32 [%0], 1;" ::"l"(failure) : "memory");
    }
    return __any_sync(ALL_LANES, late || failed == launch + 1);
  }

  // ---- the finishers: each with every slot

  __device__ __forceinline__ void finish() {
    const int thread = threadIdx.x - STATISTICIANS;
    Turn turn;
    for (;;) {
      if constexpr (LOADED_BY_GROUPS) {
        memory.taken[turn.slot].wait(turn.parity);
        if (memory.work[turn.slot].row == NO_SLICE) break;
      }
      memory.full[turn.slot].wait(turn.parity);
      const Work work = memory.work[turn.slot];
      if (work.row == NO_SLICE) break;
      if constexpr (!ONLY_COPY) memory.merged[turn.slot].wait(turn.parity);
      const Weights<T> weights(ONLY_COPY ? Partial{0.f, 1.f} : memory.rows[turn.slot]);
      const uint4* slot = memory.slots[turn.slot];
      const int size = length(work.slice);
      uint4* to = y + static_cast<long long>(work.row) * vectors + static_cast<long long>(work.slice) * slice_vectors;
#pragma unroll
      for (int first = 0; first < EACH; first += CHUNK) {
        uint4 v[CHUNK];
#pragma unroll
        for (int i = 0; i < CHUNK; i++) v[i] = slot[(first + i) * FINISHERS + thread];
        if (first + CHUNK == EACH) {  // read: it can be filled while this is written
          __syncwarp();
          if (threadIdx.x % 32 == 0) memory.empty[turn.slot].arrive();
        }
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
          const int at = (first + i) * FINISHERS + thread;
          if (at < size) to[at] = ONLY_COPY ? v[i] : weights(v[i]);
        }
      }
      turn.next();
    }
  }

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < SLOTS; i++) {
        memory.taken[i].init(1);
        memory.full[i].init(LOADED_BY_GROUPS ? WARPS : FILL == BULK ? 1 : 33);
        memory.merged[i].init(1);
        memory.empty[i].init(FINISHERS / 32);
      }
      for (int i = 0; i < SENT; i++) memory.received[i].init(1);
      fence_barrier_init();
    }
    __syncthreads();
    if constexpr (CLUSTER > 1) cluster_arrive();
    const int warp = threadIdx.x / 32;
    if (warp == ALL / 32 - 1) {
      produce();
    }
    if constexpr (CLUSTER > 1) cluster_wait();
    u64 launch = 0;
    if (CLUSTER == 0 && !ONLY_COPY) launch = *static_cast<volatile u64*>(&shared->launches);
    if (warp < STATISTICIANS / 32) {
      if constexpr (!ONLY_COPY || LOADED_BY_GROUPS) reduce(launch);
    } else if (warp < (STATISTICIANS + FINISHERS) / 32) {
      finish();
    } else if (warp == ALL / 32 - 2) {
      if constexpr (!ONLY_COPY) gather(launch);
    }
    if constexpr (CLUSTER == 0) leave();
  }

  // The last CTA to leave makes all ready for the next launch.
  __device__ __forceinline__ void leave() {
    __syncthreads();
    if (threadIdx.x != 0) return;
    __threadfence();
    if (atomicAdd(&shared->finished, 1ull) + 1 == gridDim.x) {
      shared->taken = 0;
      shared->finished = 0;
      shared->launches += 1;
    }
  }
};

template <class T, int SLOTS, int THREADS, int GROUPS, int VECTORS, int FINISHERS, int FILL, int CLUSTER, bool TICKETS,
          bool ONLY_COPY, int CTAS>
__global__ void __launch_bounds__(THREADS* GROUPS + FINISHERS + 64, CTAS)
    softmax_ring(const uint4* __restrict__ x, uint4* __restrict__ y, long long rows, long long x_stride, int vectors,
                 int slices, int slice_vectors, Shared* shared, int* failure, u64 limit_ns) {
  extern __shared__ __align__(128) unsigned char bytes[];
  using Kernel = Ring<T, SLOTS, THREADS, GROUPS, VECTORS, FINISHERS, FILL, CLUSTER, TICKETS, ONLY_COPY, CTAS>;
  Kernel kernel{x,    y,      x_stride, vectors, slices, slice_vectors,
                rows, shared, failure,  limit_ns, *reinterpret_cast<typename Kernel::Memory*>(bytes)};
  kernel.run();
}
