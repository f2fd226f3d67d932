// The GELU that one writes first: one element for each thread, and the formula of the paper.
//
// 0.5 and 1.0 are doubles, so tanh and every product are computed in float64. A consumer GPU has 1/64 as many units for
// float64 as for float32, an H200 half as many. gelu.cu shows how to do better.
__global__ void gelu_kernel(const float* x, float* y, long long count) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < count) {
        y[i] = 0.5 * x[i] * (1.0 + tanh(0.79788456 * (x[i] + 0.044715 * x[i] * x[i] * x[i])));
    }
}
