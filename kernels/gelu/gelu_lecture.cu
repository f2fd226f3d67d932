// The GELU that is written first: one element a thread, and the formula as it stands in a book.
//
// 0.5 and 1.0 are doubles, and so is all that they touch: tanh and every product are computed in float64, which a GPU
// for games has 1/64 of the units for, and an H200 half. The other file of this folder says what it takes to do better.
__global__ void gelu_kernel(const float* x, float* y, long long count) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < count) {
        y[i] = 0.5 * x[i] * (1.0 + tanh(0.79788456 * (x[i] + 0.044715 * x[i] * x[i] * x[i])));
    }
}
