// Softmax. kernels/softmax/_cuda_plan.py chooses the kernel.
#include "cluster.cuh"
#include "general.cuh"
#include "ring.cuh"
#include "rows.cuh"
