// Softmax: which kernel for which rows is for kernels/softmax/_cuda_plan.py to say.
#include "cluster.cuh"
#include "general.cuh"
#include "ring.cuh"
#include "rows.cuh"
