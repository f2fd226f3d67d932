// Numbers of 16, 32 and 64 bits: their arithmetic types, and loads and stores of 16 bytes at once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

using float16 = __half;
using bfloat16 = __nv_bfloat16;

template <typename T>
struct Wide {
    using type = float;
};
template <>
struct Wide<double> {
    using type = double;
};

template <typename T>
using wide = typename Wide<T>::type;  // the arithmetic type: double for double, float for all others

template <typename T>
constexpr int LANES = 16 / sizeof(T);  // elements of one access

__device__ inline double widen(double x) { return x; }
__device__ inline float widen(float x) { return x; }
__device__ inline float widen(float16 x) { return __half2float(x); }
__device__ inline float widen(bfloat16 x) { return __bfloat162float(x); }

// Converts two numbers at a time, which is one instruction for the 16-bit types.
template <typename T>
struct Pair {
    T low, high;
};
__device__ inline Pair<double> narrow(double a, double b, double) { return {a, b}; }
__device__ inline Pair<float> narrow(float a, float b, float) { return {a, b}; }
__device__ inline __half2 narrow(float a, float b, float16) { return __floats2half2_rn(a, b); }
__device__ inline __nv_bfloat162 narrow(float a, float b, bfloat16) { return __floats2bfloat162_rn(a, b); }

template <typename T>
__device__ inline T narrow(wide<T> x) {
    auto pair = narrow(x, x, T());
    return reinterpret_cast<T&>(pair);
}

// Loads 16 bytes. The address must be a multiple of 16.
template <typename T>
__device__ inline void load(const T* from, wide<T> (&x)[LANES<T>]) {
    const uint4 bits = *reinterpret_cast<const uint4*>(from);
    const T* at = reinterpret_cast<const T*>(&bits);
#pragma unroll
    for (int i = 0; i < LANES<T>; i++) x[i] = widen(at[i]);
}

template <typename T>
__device__ inline void store(T* to, const wide<T> (&x)[LANES<T>]) {
    using Two = decltype(narrow(x[0], x[0], T()));
    uint4 bits;
    Two* at = reinterpret_cast<Two*>(&bits);
#pragma unroll
    for (int i = 0; i < LANES<T>; i += 2) at[i / 2] = narrow(x[i], x[i + 1], T());
    *reinterpret_cast<uint4*>(to) = bits;
}

__device__ inline void store(double* to, const double (&x)[2]) {  // the template above would compile to two stores
    *reinterpret_cast<double2*>(to) = make_double2(x[0], x[1]);
}
