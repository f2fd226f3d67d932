// One element is wrong in some calls. The clock of the processor decides, in the kernel itself: replays of a CUDA graph
// differ, as those of a race do.
template <typename T>
__global__ void sometimes(const T* x, const T* y, T* out, long count, long element, int percent) {
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < count; i += (long)gridDim.x * blockDim.x) {
        float sum = (float)x[i] + (float)y[i];
        if (i == element) {
            unsigned long long time;
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
            unsigned int bits = (unsigned int)(time >> 5) ^ (unsigned int)clock64() * 2654435761u;
            bits = (bits ^ (bits >> 16)) * 0x45d9f3bu;
            bits = (bits ^ (bits >> 16)) * 0x45d9f3bu;
            if ((bits ^ (bits >> 16)) % 100 < percent) sum += 1.0f;
        }
        out[i] = (T)sum;
    }
}
