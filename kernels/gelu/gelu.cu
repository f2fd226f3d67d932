// GELU. A thread reads 16 bytes, computes in registers, and writes 16 bytes, so the speed is that of memory.
//
// Accesses are plain, one vector for each thread. More vectors, larger blocks or cache hints all lose 2 to 10 %.
#include "../numbers.cuh"

constexpr int THREADS = 256;

__device__ inline float exp2_fast(float x) {  // 0 below 2^-126, where exp2f would take two more instructions
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// x (1 + tanh u) / 2 = x sigmoid(2 u). Nothing cancels, and if exp overflows the result is x / inf = 0.
__device__ inline float tanh_form(float x) {
    const float minus_2_u = x * (-2.30220820f - 0.102943240f * x * x);  // log2(e) -2 sqrt(2 / pi) (x + 0.044715 x^3)
    return __fdividef(x, 1.0f + exp2_fast(minus_2_u));
}

__device__ inline double tanh_form(double x) {
    return x / (1.0 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)));
}

// x Phi(x), from a polynomial that approximates log2 Phi(-|x|), which is nearly a parabola. It takes fewer instructions than
// a quotient, and is accurate in the left tail too, where 1 + erf cancels. The coefficients are from the Remez algorithm. The
// error of Phi is 5e-8 for float and 3e-7 for 16-bit types; at x = -4 the relative error is 4e-5 and 3e-4.
template <typename T>
__device__ inline float erf_form(float x) {
    const float a = fabsf(x);
    float log2;
    if constexpr (sizeof(T) == 4) {
        log2 = -4.83386364e-09f * a + 2.08505041e-07f;
        log2 = log2 * a - 3.67061406e-06f;
        log2 = log2 * a + 3.2716281e-05f;
        log2 = log2 * a - 0.00012835695f;
        log2 = log2 * a - 0.000306408802f;
        log2 = log2 * a + 0.00730232225f;
        log2 = log2 * a - 0.0526637732f;
        log2 = log2 * a - 0.459154302f;
        log2 = log2 * a - 1.15111146f;
        log2 = log2 * a - 0.999999879f;
    } else {
        log2 = -9.34124705e-07f * a + 4.38753642e-05f;
        log2 = log2 * a - 0.000802732605f;
        log2 = log2 * a + 0.00808682991f;
        log2 = log2 * a - 0.053305934f;
        log2 = log2 * a - 0.458911986f;
        log2 = log2 * a - 1.15114395f;
        log2 = log2 * a - 0.999999214f;
    }
    const float tail = exp2_fast(log2);
    return x * (x < 0.0f ? tail : 1.0f - tail);
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

// y[i] = GELU(x[i]) for i < count. A block computes THREADS * LANES<T> elements. The address of y is a multiple of 16 bytes;
// that of x is if ALIGNED.
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
    // All loads before the first store, which the compiler cannot do: it does not know that y is not x.
    wide<T> values[LANES<T>];
#pragma unroll
    for (int step = 0; step < LANES<T>; step++) {
        const long long i = first + step * THREADS + threadIdx.x;
        if (i < count) values[step] = widen(x[i]);
    }
#pragma unroll
    for (int step = 0; step < LANES<T>; step++) {
        const long long i = first + step * THREADS + threadIdx.x;
        if (i < count) y[i] = narrow<T>(gelu<T, TANH>(values[step]));
    }
}
