// What C's and C++'s headers, which NVRTC lacks, declare for device code. 64-bit types are those of CUDA's own headers.
#pragma once

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef long long intptr_t;
typedef unsigned long long uintptr_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef float2 cufftComplex;
typedef double2 cufftDoubleComplex;

#define CHAR_BIT 8
#define INT8_MAX 127
#define UINT8_MAX 255
#define SHRT_MAX 32767
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295U
#define LONG_MAX 9223372036854775807L
#define LLONG_MAX 9223372036854775807LL
#define LLONG_MIN (-LLONG_MAX - 1)
#define ULLONG_MAX 18446744073709551615ULL
#define INT32_MAX INT_MAX
#define INT32_MIN INT_MIN
#define UINT32_MAX UINT_MAX
#define INT64_MAX LLONG_MAX
#define INT64_MIN LLONG_MIN
#define UINT64_MAX ULLONG_MAX
#define SIZE_MAX ULLONG_MAX
#define RAND_MAX 2147483647
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_EPSILON 1.192092896e-07F
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#define HUGE_VALF INFINITY
#define HUGE_VAL __builtin_bit_cast(double, 0x7ff0000000000000LL)
#define NAN __builtin_bit_cast(float, 0x7fffffff)
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LN2 0.69314718055994530942
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440

namespace std {
using ::int8_t, ::int16_t, ::int32_t, ::int64_t, ::uint8_t, ::uint16_t, ::uint32_t, ::uint64_t, ::size_t, ::ptrdiff_t;
using ::abs, ::fabs, ::sqrt, ::cbrt, ::pow, ::exp, ::exp2, ::expm1, ::log, ::log2, ::log10, ::log1p, ::hypot;
using ::sin, ::cos, ::tan, ::asin, ::acos, ::atan, ::atan2, ::sinh, ::cosh, ::tanh, ::erf, ::erfc, ::tgamma, ::lgamma;
using ::ceil, ::floor, ::round, ::trunc, ::rint, ::fmod, ::fma, ::fmin, ::fmax, ::copysign, ::isnan, ::isinf, ::isfinite;

template <typename T> __host__ __device__ constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <typename T> __host__ __device__ constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <typename T> __host__ __device__ constexpr void swap(T& a, T& b) { T c = a; a = b; b = c; }

template <typename T, T v> struct integral_constant {
    static constexpr T value = v;
    typedef T value_type;
    __host__ __device__ constexpr operator T() const { return v; }
};
template <bool v> using bool_constant = integral_constant<bool, v>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;
template <typename A, typename B> struct is_same : false_type {};
template <typename A> struct is_same<A, A> : true_type {};
template <typename A, typename B> constexpr bool is_same_v = is_same<A, B>::value;
template <typename T> struct is_floating_point : false_type {};
template <> struct is_floating_point<float> : true_type {};
template <> struct is_floating_point<double> : true_type {};
template <typename T> constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <typename T> struct remove_reference { typedef T type; };
template <typename T> struct remove_reference<T&> { typedef T type; };
template <typename T> struct remove_reference<T&&> { typedef T type; };
template <typename T> using remove_reference_t = typename remove_reference<T>::type;
template <typename T> struct remove_const { typedef T type; };
template <typename T> struct remove_const<const T> { typedef T type; };
template <typename T> using remove_const_t = typename remove_const<T>::type;
template <typename T> using remove_cv_t = remove_const_t<T>;
template <typename T> using decay_t = remove_const_t<remove_reference_t<T>>;
template <bool, typename A, typename B> struct conditional { typedef A type; };
template <typename A, typename B> struct conditional<false, A, B> { typedef B type; };
template <bool c, typename A, typename B> using conditional_t = typename conditional<c, A, B>::type;
template <bool, typename A = void> struct enable_if {};
template <typename A> struct enable_if<true, A> { typedef A type; };
template <bool c, typename A = void> using enable_if_t = typename enable_if<c, A>::type;

template <typename T> struct numeric_limits {
    static constexpr bool is_specialized = false;
};
#define RUNNER_LIMITS(T, LOWEST, LEAST, MOST, EPSILON, INFINITE) \
    template <> struct numeric_limits<T> { \
        static constexpr bool is_specialized = true; \
        __host__ __device__ static constexpr T lowest() { return LOWEST; } \
        __host__ __device__ static constexpr T min() { return LEAST; } \
        __host__ __device__ static constexpr T max() { return MOST; } \
        __host__ __device__ static constexpr T epsilon() { return EPSILON; } \
        __host__ __device__ static constexpr T infinity() { return INFINITE; } \
        __host__ __device__ static constexpr T quiet_NaN() { return (T)NAN; } \
    };
RUNNER_LIMITS(float, -FLT_MAX, FLT_MIN, FLT_MAX, FLT_EPSILON, INFINITY)
RUNNER_LIMITS(double, -DBL_MAX, DBL_MIN, DBL_MAX, DBL_EPSILON, HUGE_VAL)
RUNNER_LIMITS(bool, false, false, true, false, false)
RUNNER_LIMITS(char, -128, -128, 127, 0, 0)
RUNNER_LIMITS(signed char, -128, -128, 127, 0, 0)
RUNNER_LIMITS(unsigned char, 0, 0, 255, 0, 0)
RUNNER_LIMITS(short, -32768, -32768, 32767, 0, 0)
RUNNER_LIMITS(unsigned short, 0, 0, 65535, 0, 0)
RUNNER_LIMITS(int, INT_MIN, INT_MIN, INT_MAX, 0, 0)
RUNNER_LIMITS(unsigned int, 0, 0, UINT_MAX, 0, 0)
RUNNER_LIMITS(long, -LONG_MAX - 1, -LONG_MAX - 1, LONG_MAX, 0, 0)
RUNNER_LIMITS(unsigned long, 0, 0, ULLONG_MAX, 0, 0)
RUNNER_LIMITS(long long, LLONG_MIN, LLONG_MIN, LLONG_MAX, 0, 0)
RUNNER_LIMITS(unsigned long long, 0, 0, ULLONG_MAX, 0, 0)
#undef RUNNER_LIMITS
}  // namespace std
