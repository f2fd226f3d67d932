// Direct convolution: a tile of filters and pixels of y is in registers, tiles of x and w are in shared memory.
//
// A block computes FILTERS filters at HEIGHT x WIDTH pixels of one image. A thread computes EACH filters at PIXELS pixels in
// a row. So a number of x that it reads from shared memory serves EACH filters and, with STRIDE < KERNEL, several columns of
// the filter; a number of w serves PIXELS pixels, and all threads of a warp read the same one.
#include "../numbers.cuh"

// x, w and y have four strides each. Block x: a tile of pixels of an image; y: a tile of filters of a group.
template <typename T, int KERNEL, int STRIDE, int DILATION, int FILTERS, int EACH, int HEIGHT, int WIDTH, int PIXELS, int DEPTH>
__global__ void __launch_bounds__(FILTERS / EACH* HEIGHT* WIDTH / PIXELS, sizeof(T) == 8 ? 1 : 2) conv2d_kernel(
    const T* x, const T* w, T* y, long long channels, long long filters, long long in_height, long long in_width,
    long long out_height, long long out_width, long long padding, long long x_n, long long x_c, long long x_h, long long x_w,
    long long w_f, long long w_c, long long w_h, long long w_w, long long y_n, long long y_c, long long y_h, long long y_w) {
    using W = wide<T>;
    constexpr int THREADS = FILTERS / EACH * HEIGHT * WIDTH / PIXELS, TAPS = KERNEL * KERNEL;
    constexpr int REACH = DILATION * (KERNEL - 1), ROWS = (HEIGHT - 1) * STRIDE + REACH + 1;
    constexpr int COLS = (WIDTH - 1) * STRIDE + REACH + 1, PITCH = COLS | 1;  // odd: rows begin in different banks
    constexpr int SEEN = (PIXELS - 1) * STRIDE + REACH + 1;  // numbers of a row that a thread reads
    constexpr int LINE = FILTERS + 16 / sizeof(W);
    __shared__ W image[DEPTH][ROWS][PITCH];
    __shared__ alignas(16) W weights[DEPTH][TAPS][LINE];

    const long long across = (out_width + WIDTH - 1) / WIDTH, tiles = (out_height + HEIGHT - 1) / HEIGHT * across;
    const long long per_group = (filters + FILTERS - 1) / FILTERS, number = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    const long long row = tile / across * HEIGHT, col = tile % across * WIDTH;
    const long long group = blockIdx.y / per_group, filter = blockIdx.y % per_group * FILTERS;
    const int place = threadIdx.x % (HEIGHT * WIDTH / PIXELS), own = threadIdx.x / (HEIGHT * WIDTH / PIXELS) * EACH;
    const int down = place / (WIDTH / PIXELS), along = place % (WIDTH / PIXELS) * PIXELS;
    const long long top = row * STRIDE - padding, left = col * STRIDE - padding;
    x += number * x_n + group * channels * x_c;
    w += (group * filters + filter) * w_f;

    W sum[EACH][PIXELS] = {};
    for (long long channel = 0; channel < channels; channel += DEPTH) {
        __syncthreads();
        for (int i = threadIdx.x; i < DEPTH * ROWS * COLS; i += THREADS) {
            // Neighboring threads read neighbors in memory: pixels of a row, or channels of a pixel.
            const int c = x_c == 1 ? i % DEPTH : i / (ROWS * COLS), pixel = x_c == 1 ? i / DEPTH : i % (ROWS * COLS);
            const int r = pixel / COLS, s = pixel % COLS;
            const long long h = top + r, v = left + s;
            const bool inside = channel + c < channels && h >= 0 && h < in_height && v >= 0 && v < in_width;
            image[c][r][s] = inside ? widen(x[(channel + c) * x_c + h * x_h + v * x_w]) : W(0);
        }
        for (int i = threadIdx.x; i < FILTERS * DEPTH * TAPS; i += THREADS) {
            const int f = i / (DEPTH * TAPS), rest = i % (DEPTH * TAPS);
            const int c = w_c == 1 ? rest % DEPTH : rest / TAPS, tap = w_c == 1 ? rest / DEPTH : rest % TAPS;
            const bool inside = filter + f < filters && channel + c < channels;
            const long long at = f * w_f + (channel + c) * w_c + tap / KERNEL * w_h + tap % KERNEL * w_w;
            weights[c][tap][f] = inside ? widen(w[at]) : W(0);
        }
        __syncthreads();
#pragma unroll 1
        for (int c = 0; c < DEPTH; c++) {
#pragma unroll
            for (int k = 0; k < KERNEL; k++) {
                W seen[SEEN];
#pragma unroll
                for (int i = 0; i < SEEN; i++) seen[i] = image[c][down * STRIDE + k * DILATION][along * STRIDE + i];
#pragma unroll
                for (int l = 0; l < KERNEL; l++) {
#pragma unroll
                    for (int f = 0; f < EACH; f++) {
                        const W factor = weights[c][k * KERNEL + l][own + f];
#pragma unroll
                        for (int p = 0; p < PIXELS; p++) sum[f][p] += factor * seen[p * STRIDE + l * DILATION];
                    }
                }
            }
        }
    }
    if (row + down >= out_height) return;
    y += number * y_n + (group * filters + filter + own) * y_c + (row + down) * y_h;
#pragma unroll
    for (int f = 0; f < EACH; f++) {
#pragma unroll
        for (int p = 0; p < PIXELS; p++) {
            if (filter + own + f < filters && col + along + p < out_width) {
                y[f * y_c + (col + along + p) * y_w] = narrow<T>(sum[f][p]);
            }
        }
    }
}
