// What the softmax kernels share: 16 bytes of a row as numbers, and the pair (largest, sum) of a part of a row.
#pragma once

constexpr float LOG2_E = 1.4426950408889634f;
constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// One instruction; a weight below 2^-126 is 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The types: how many fit into 16 bytes, how two 32-bit words of them are compared, read and written, and a word of -inf.
struct Float32 {
  static constexpr int WIDTH = 4;
  static constexpr bool NARROW = false;
  static constexpr unsigned LOWEST = 0xff800000u;
  static __device__ __forceinline__ unsigned larger(unsigned a, unsigned b) {
    return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
  }
  static __device__ __forceinline__ float largest(unsigned word) { return __uint_as_float(word); }
  static __device__ __forceinline__ void unpack(unsigned word, float* x) { x[0] = __uint_as_float(word); }
  static __device__ __forceinline__ unsigned pack(const float* x) { return __float_as_uint(x[0]); }
};

struct BFloat16 {
  static constexpr int WIDTH = 8;
  static constexpr bool NARROW = true;
  static constexpr unsigned LOWEST = 0xff80ff80u;
  static __device__ __forceinline__ unsigned larger(unsigned a, unsigned b) {
    unsigned c;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
  }
  static __device__ __forceinline__ void unpack(unsigned word, float* x) {
    x[0] = __uint_as_float(word << 16);
    x[1] = __uint_as_float(word & 0xffff0000u);
  }
  static __device__ __forceinline__ float largest(unsigned word) {
    float x[2];
    unpack(word, x);
    return fmaxf(x[0], x[1]);
  }
  static __device__ __forceinline__ unsigned pack(const float* x) {
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(x[1]), "f"(x[0]));
    return word;
  }
};

struct Float16 {
  static constexpr int WIDTH = 8;
  static constexpr bool NARROW = true;
  static constexpr unsigned LOWEST = 0xfc00fc00u;
  static __device__ __forceinline__ unsigned larger(unsigned a, unsigned b) {
    unsigned c;
    asm("max.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
  }
  static __device__ __forceinline__ void unpack(unsigned word, float* x) {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(x[0]), "=f"(x[1])
        : "r"(word));
  }
  static __device__ __forceinline__ float largest(unsigned word) {
    float x[2];
    unpack(word, x);
    return fmaxf(x[0], x[1]);
  }
  static __device__ __forceinline__ unsigned pack(const float* x) {
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(x[1]), "f"(x[0]));
    return word;
  }
};

template <class T>
__device__ __forceinline__ uint4 lowest() {
  return make_uint4(T::LOWEST, T::LOWEST, T::LOWEST, T::LOWEST);
}

template <class T>
__device__ __forceinline__ void unpack(uint4 v, float* x) {
  constexpr int STEP = T::WIDTH / 4;
  T::unpack(v.x, x);
  T::unpack(v.y, x + STEP);
  T::unpack(v.z, x + 2 * STEP);
  T::unpack(v.w, x + 3 * STEP);
}

template <class T>
__device__ __forceinline__ uint4 pack(const float* x) {
  constexpr int STEP = T::WIDTH / 4;
  return make_uint4(T::pack(x), T::pack(x + STEP), T::pack(x + 2 * STEP), T::pack(x + 3 * STEP));
}

// Of a part of a row: its largest x, and the sum of exp(x - largest), or of exp(x) = 0 where all x are -inf.
struct Partial {
  float largest, sum;
};

// What is subtracted from x: where all are -inf, nothing, since -inf - -inf is NaN and another part may be finite.
__device__ __forceinline__ float base_of(float largest) { return largest == -infinity() ? 0.f : largest; }

template <int LANES>
__device__ __forceinline__ float largest_of_lanes(float x) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
  return x;
}

template <int LANES>
__device__ __forceinline__ float sum_of_lanes(float x) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
  return x;
}

// One of each of LANES neighbouring lanes, made one: two rounds of shuffles and one exp2.
template <int LANES>
__device__ __forceinline__ Partial merge_lanes(Partial part) {
  const float largest = largest_of_lanes<LANES>(part.largest);
  const float scale = exp2_approx((part.largest - base_of(largest)) * LOG2_E);
  return {largest, sum_of_lanes<LANES>(part.sum * scale)};
}

__device__ __forceinline__ Partial merge(Partial a, Partial b) {
  const float largest = fmaxf(a.largest, b.largest);
  const float base = base_of(largest);
  const float sum = a.sum * exp2_approx((a.largest - base) * LOG2_E) + b.sum * exp2_approx((b.largest - base) * LOG2_E);
  return {largest, sum};
}

// Of what LANES neighbouring lanes hold in registers, COUNT vectors each.
template <class T, int LANES, int COUNT>
__device__ __forceinline__ Partial partial_of(const uint4 (&v)[COUNT]) {
  unsigned word = T::LOWEST;
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    word = T::larger(T::larger(word, v[i].x), T::larger(v[i].y, T::larger(v[i].z, v[i].w)));
  }
  const float largest = largest_of_lanes<LANES>(T::largest(word));
  const float base = base_of(largest);
  float sum[2] = {0.f, 0.f};  // two chains of additions
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    float x[T::WIDTH];
    unpack<T>(v[i], x);
#pragma unroll
    for (int j = 0; j < T::WIDTH; j++) sum[j % 2] += exp2_approx((x[j] - base) * LOG2_E);
  }
  return {largest, sum_of_lanes<LANES>(sum[0] + sum[1])};
}

// exp(x - largest) / sum. In 16 bits the division is part of the exponent, where its error of 2^-20 does not show.
template <class T>
struct Weights {
  float largest, factor;
  __device__ __forceinline__ explicit Weights(Partial row)
      : largest(row.largest), factor(T::NARROW ? -log2_approx(row.sum) : 1.f / row.sum) {}
  __device__ __forceinline__ uint4 operator()(uint4 v) const {
    float x[T::WIDTH];
    unpack<T>(v, x);
#pragma unroll
    for (int j = 0; j < T::WIDTH; j++) {
      if constexpr (T::NARROW) {
        x[j] = exp2_approx(fmaf(x[j] - largest, LOG2_E, factor));
      } else {
        x[j] = exp2_approx((x[j] - largest) * LOG2_E) * factor;
      }
    }
    return pack<T>(x);
  }
};

// Keeps what is packed packed: the compiler would else keep the unpacked numbers from the sum to the weights, in twice the
// registers.
template <int COUNT>
__device__ __forceinline__ void stay_packed(uint4 (&v)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(v[i].x), "+r"(v[i].y), "+r"(v[i].z), "+r"(v[i].w));
}
