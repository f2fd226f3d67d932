// GELU: a thread reads sixteen bytes, computes in registers, and writes sixteen bytes, so it runs at the speed of memory.
//
// Plain accesses, one vector a thread: several of them, larger blocks and hints to the cache all lose 2 to 10 %.
#include "../numbers.cuh"

constexpr int THREADS = 256;

__device__ inline float exp2_fast(float x) {  // 0 below 2^-126, where exp2f would take two more instructions
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// x (1 + tanh u) / 2 = x sigmoid(2 u). It cancels nowhere, and where exp overflows it ends in x / inf = 0.
__device__ inline float tanh_form(float x) {
    const float minus_2_u = x * (-2.30220820f - 0.102943240f * x * x);  // log2(e) -2 sqrt(2 / pi) (x + 0.044715 x^3)
    return __fdividef(x, 1.0f + exp2_fast(minus_2_u));
}

__device__ inline double tanh_form(double x) {
    return x / (1.0 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)));
}

// x Phi(x) for types of 16 bits, by Abramowitz & Stegun 7.1.26: off by 0.75e-7 in Phi, for half of erff's instructions.
// The left tail is a product, in which nothing cancels.
template <typename T>
__device__ inline float erf_form(float x) {
    const float t = __fdividef(1.0f, 1.0f + 0.231641888f * fabsf(x));  // 0.3275911 / sqrt(2)
    float series = 0.5307027145f;                                      // halves of the coefficients there
    series = series * t - 0.7265760135f;
    series = series * t + 0.7107068705f;
    series = series * t - 0.142248368f;
    series = series * t + 0.127414796f;
    const float tail = series * t * exp2_fast(-0.721347520f * x * x);  // log2(e) / 2
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

template <>
__device__ inline float erf_form<float>(float x) {
    return 0.5f * x * (1.0f + erff(x * 0.707106781f));
}

template <typename T>
__device__ inline double erf_form(double x) {
    return x * normcdf(x);
}

template <typename T, bool TANH>
__device__ inline wide<T> gelu(wide<T> x) {
    if constexpr (TANH) {
        return tanh_form(x);
    } else {
        return erf_form<T>(x);
    }
}

// y[i] = GELU(x[i]), i < count. A block takes THREADS * LANES<T> elements. y is a multiple of 16; x is if ALIGNED.
template <typename T, bool TANH, bool ALIGNED>
__global__ void __launch_bounds__(THREADS) gelu_kernel(const T* x, T* y, long long count) {
    const long long first = blockIdx.x * (long long)(THREADS * LANES<T>);
    if (ALIGNED && first + THREADS * LANES<T> <= count) {
        const long long i = first + threadIdx.x * LANES<T>;
        wide<T> values[LANES<T>];
        load(x + i, values);
#pragma unroll
        for (int lane = 0; lane < LANES<T>; lane++) values[lane] = gelu<T, TANH>(values[lane]);
        store(y + i, values);
        return;
    }
#pragma unroll
    for (int step = 0; step < LANES<T>; step++) {
        const long long i = first + step * THREADS + threadIdx.x;
        if (i < count) y[i] = narrow<T>(gelu<T, TANH>(widen(x[i])));
    }
}
