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

// A row. With EDGES its length is not a multiple of 16 bytes: up to LANES - 1 elements, its edges, lie before the first
// whole vector, and as many after the last one. Strides and lengths are then in elements, otherwise in vectors.
template <typename T, bool EDGES>
struct Row {
    static constexpr int WIDTH = LANES<T>;

    const uint4* x;  // the first whole vector
    uint4* y;
    int vectors, begin, end;  // whole vectors; the first and last column, counted from the first whole vector

    __device__ Row(const uint4* x, uint4* y, long long row, long long x_stride, long long length) {
        if constexpr (EDGES) {
            const long long start = row * x_stride, first = (start + WIDTH - 1) / WIDTH;
            this->x = x + first;
            this->y = y + (row * length + WIDTH - 1) / WIDTH;
            begin = (int)(start - first * WIDTH);
            end = (int)length + begin;
            vectors = end / WIDTH;
        } else {
            this->x = x + row * x_stride;
            this->y = y + row * length;
            vectors = (int)length;
        }
    }

    // The column of a thread in the edges; the first 2 WIDTH threads may have one.
    __device__ int edge(int thread) const { return thread - WIDTH + (thread < WIDTH ? 0 : vectors * WIDTH); }
    __device__ bool has_edge(int thread) const {
        return EDGES && thread < 2 * WIDTH && edge(thread) >= begin && edge(thread) < end;
    }
    __device__ float load_edge(int thread) const {
        return has_edge(thread) ? widen(((const T*)x)[edge(thread)]) : -infinity();
    }
    __device__ void store_edge(int thread, float value) const {
        if (has_edge(thread)) ((T*)y)[edge(thread)] = narrow<T>(value);
    }
};

// The partial of the elements that COUNT neighbouring lanes hold: VECTORS vectors each and, with EDGES, an element. fmaxf
// ignores NaN, the sum keeps it.
template <typename T, int COUNT, bool EDGES, int VECTORS>
__device__ inline Partial partial_of(const uint4 (&v)[VECTORS], float edge) {
    unsigned word = Word<T>::LOWEST;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const unsigned low = Word<T>::larger(v[i].x, v[i].y), high = Word<T>::larger(v[i].z, v[i].w);
        word = Word<T>::larger(word, Word<T>::larger(low, high));
    }
    float x[LANES<T>];
    Word<T>::unpack(word, x);
    float largest = sizeof(T) == 2 ? fmaxf(x[0], x[1]) : x[0];
    if constexpr (EDGES) largest = fmaxf(largest, edge);
    largest = largest_of_lanes<COUNT>(largest);
    const float base = base_of(largest);
    float sum[2] = {0.0f, 0.0f};  // two independent chains of additions
    if constexpr (EDGES) sum[0] = exp_fast(edge - base);
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
    __device__ float operator()(float x) const {
        return NARROW ? exp2_fast(fmaf(x - largest, 1.44269504f, factor)) : exp_fast(x - largest) * factor;
    }
    __device__ uint4 operator()(uint4 v) const {
        float x[LANES<T>];
        unpack<T>(v, x);
#pragma unroll
        for (int j = 0; j < LANES<T>; j++) x[j] = (*this)(x[j]);
        return pack<T>(x);
    }
};

// Keeps the vectors packed. Otherwise the compiler keeps the values that it unpacked for the sum, in twice the registers.
template <int VECTORS>
__device__ inline void stay_packed(uint4 (&v)[VECTORS]) {
#pragma unroll
    for (int i = 0; i < VECTORS; i++) asm volatile("" : "+r"(v[i].x), "+r"(v[i].y), "+r"(v[i].z), "+r"(v[i].w));
}
