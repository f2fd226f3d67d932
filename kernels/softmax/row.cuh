// Shared by the softmax kernels: 16 bytes of a row as numbers, and the pair (largest, sum) of a part of a row.
#pragma once

#include "../numbers.cuh"

constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ inline float infinity() { return __int_as_float(0x7f800000); }
__device__ inline float not_a_number() { return __int_as_float(0x7fffffff); }

__device__ inline float exp2_fast(float x) {  // 0 below 2^-126, where exp2f would take two more instructions
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// exp(x) for x <= 0. Callers subtract first: x log2(e) - largest log2(e) would be off by 2^-24 of its terms, which matters
// for logits of 1e4.
__device__ inline float exp_fast(float x) { return exp2_fast(x * 1.44269504f); }

// A 32-bit register: one float, or two 16-bit numbers.
template <typename T>
struct Word;

template <>
struct Word<float> {
    static constexpr unsigned LOWEST = 0xff800000u;  // -inf
    static __device__ unsigned larger(unsigned a, unsigned b) {
        return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
    }
    static __device__ void unpack(unsigned word, float* x) { x[0] = __uint_as_float(word); }
    static __device__ unsigned pack(const float* x) { return __float_as_uint(x[0]); }
};

template <>
struct Word<bfloat16> {
    static constexpr unsigned LOWEST = 0xff80ff80u;
    static __device__ unsigned larger(unsigned a, unsigned b) {
        unsigned c;
        asm("max.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
        return c;
    }
    static __device__ void unpack(unsigned word, float* x) {
        x[0] = __uint_as_float(word << 16);
        x[1] = __uint_as_float(word & 0xffff0000u);
    }
    static __device__ unsigned pack(const float* x) {
        unsigned word;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(x[1]), "f"(x[0]));
        return word;
    }
};

template <>
struct Word<float16> {
    static constexpr unsigned LOWEST = 0xfc00fc00u;
    static __device__ unsigned larger(unsigned a, unsigned b) {
        unsigned c;
        asm("max.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
        return c;
    }
    static __device__ void unpack(unsigned word, float* x) {
        asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
            : "=f"(x[0]), "=f"(x[1])
            : "r"(word));
    }
    static __device__ unsigned pack(const float* x) {
        unsigned word;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(x[1]), "f"(x[0]));
        return word;
    }
};

template <typename T>
__device__ inline uint4 lowest() {
    constexpr unsigned word = Word<T>::LOWEST;
    return make_uint4(word, word, word, word);
}

template <typename T>
__device__ inline void unpack(uint4 v, float (&x)[LANES<T>]) {
    constexpr int STEP = LANES<T> / 4;
    Word<T>::unpack(v.x, x);
    Word<T>::unpack(v.y, x + STEP);
    Word<T>::unpack(v.z, x + 2 * STEP);
    Word<T>::unpack(v.w, x + 3 * STEP);
}

template <typename T>
__device__ inline uint4 pack(const float (&x)[LANES<T>]) {
    constexpr int STEP = LANES<T> / 4;
    return make_uint4(Word<T>::pack(x), Word<T>::pack(x + STEP), Word<T>::pack(x + 2 * STEP), Word<T>::pack(x + 3 * STEP));
}

// The result of a part of a row: its largest x, and the sum of exp(x - largest). If all x are -inf, these are -inf and 0.
struct Partial {
    float largest, sum;
};

// The number that is subtracted from x in the sum. It is 0 if all x are -inf, since -inf - -inf would be NaN.
__device__ inline float base_of(float largest) { return largest == -infinity() ? 0.0f : largest; }

template <int COUNT>
__device__ inline float largest_of_lanes(float x) {
#pragma unroll
    for (int step = COUNT / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

template <int COUNT>
__device__ inline float sum_of_lanes(float x) {
#pragma unroll
    for (int step = COUNT / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

// Merges the partials of COUNT neighbouring lanes, with two rounds of shuffles and one exponential.
template <int COUNT>
__device__ inline Partial merge_lanes(Partial part) {
    const float largest = largest_of_lanes<COUNT>(part.largest);
    return {largest, sum_of_lanes<COUNT>(part.sum * exp_fast(part.largest - base_of(largest)))};
}

__device__ inline Partial merge(Partial a, Partial b) {
    const float largest = fmaxf(a.largest, b.largest);
    const float base = base_of(largest);
    return {largest, a.sum * exp_fast(a.largest - base) + b.sum * exp_fast(b.largest - base)};
}

// The partial of the elements that COUNT neighbouring lanes hold, VECTORS vectors each. fmaxf ignores NaN, the sum keeps it.
template <typename T, int COUNT, int VECTORS>
__device__ inline Partial partial_of(const uint4 (&v)[VECTORS]) {
    unsigned word = Word<T>::LOWEST;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const unsigned low = Word<T>::larger(v[i].x, v[i].y), high = Word<T>::larger(v[i].z, v[i].w);
        word = Word<T>::larger(word, Word<T>::larger(low, high));
    }
    float x[LANES<T>];
    Word<T>::unpack(word, x);
    const float largest = largest_of_lanes<COUNT>(sizeof(T) == 2 ? fmaxf(x[0], x[1]) : x[0]);
    const float base = base_of(largest);
    float sum[2] = {0.0f, 0.0f};  // two independent chains of additions
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        unpack<T>(v[i], x);
#pragma unroll
        for (int j = 0; j < LANES<T>; j++) sum[j % 2] += exp_fast(x[j] - base);
    }
    return {largest, sum_of_lanes<COUNT>(sum[0] + sum[1])};
}

// exp(x - largest) / sum. For 16-bit types the division is part of the exponent; its error of 2^-19 is below their rounding.
template <typename T>
struct Weights {
    static constexpr bool NARROW = sizeof(T) == 2;
    float largest, factor;
    __device__ explicit Weights(Partial row)
        : largest(row.largest), factor(NARROW ? -log2_fast(row.sum) : 1.0f / row.sum) {}
    __device__ uint4 operator()(uint4 v) const {
        float x[LANES<T>];
        unpack<T>(v, x);
#pragma unroll
        for (int j = 0; j < LANES<T>; j++) {
            const float d = x[j] - largest;
            x[j] = NARROW ? exp2_fast(fmaf(d, 1.44269504f, factor)) : exp_fast(d) * factor;
        }
        return pack<T>(x);
    }
};

// Keeps the vectors packed. Otherwise the compiler keeps the values that it unpacked for the sum, in twice the registers.
template <int VECTORS>
__device__ inline void stay_packed(uint4 (&v)[VECTORS]) {
#pragma unroll
    for (int i = 0; i < VECTORS; i++) asm volatile("" : "+r"(v[i].x), "+r"(v[i].y), "+r"(v[i].z), "+r"(v[i].w));
}
