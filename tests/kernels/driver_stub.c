/* A CUDA driver without a GPU, for test_launch_arguments.py: it writes each launch, with its parameters, into a file. */

#include "cuda.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define OK return CUDA_SUCCESS

static int parameters[65536];
static uintptr_t functions = 0x1000;
static FILE *file;

void stub_register(uint64_t function, int count) { parameters[function & 0xffff] = count; }
void stub_open(const char *path) { if (file) fclose(file); file = path ? fopen(path, "w") : 0; }

CUresult cuInit(unsigned flags) { OK; }
CUresult cuDriverGetVersion(int *version) { *version = 13000; OK; }
CUresult cuDeviceGet(CUdevice *device, int index) { *device = 0; OK; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = (CUcontext)1; OK; }
CUresult cuCtxSetCurrent(CUcontext context) { OK; }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { OK; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { OK; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { *context = (CUcontext)1; OK; }
CUresult cuModuleLoadData(CUmodule *module, const void *image) { *module = (CUmodule)1; OK; }
CUresult cuModuleUnload(CUmodule module) { OK; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  *function = (CUfunction)functions++;
  OK;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) { OK; }
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { OK; }
CUresult cuGetErrorString(CUresult code, const char **text) { *text = "stub"; OK; }

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? 232448 : 132;
  OK;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  OK;
}
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
  *(CUdeviceptr *)value = address;
  OK;
}

/* The first 8 bytes of a descriptor are a hash of all that it is made from, so that a launch shows them. */
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *shape, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  uint64_t hash = 1469598103934665603ull;
#define ADD(word) hash = (hash ^ (uint64_t)(word)) * 1099511628211ull
  ADD(type), ADD(rank), ADD(address), ADD(interleave), ADD(swizzle), ADD(promotion), ADD(fill);
  for (unsigned i = 0; i < rank; i++) ADD(shape[i]), ADD(box[i]), ADD(steps[i]);
  for (unsigned i = 0; i + 1 < rank; i++) ADD(strides[i]);
  memset(map, 0, sizeof *map);
  memcpy(map, &hash, sizeof hash);
  OK;
}

static void write_parameters(CUfunction function, void **values) {
  for (int i = 0; i < parameters[(uintptr_t)function & 0xffff]; i++)
    fprintf(file, " %lx", (unsigned long)*(uint64_t *)values[i]);
  fprintf(file, "\n");
}

CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                        unsigned threads_z, unsigned shared, CUstream stream, void **values, void **extra) {
  if (!file) OK; /* until Triton 3.3 */
  fprintf(file, "%lx %u,%u,%u %u %u %lx ", (unsigned long)function, x, y, z, threads, shared, (unsigned long)stream);
  write_parameters(function, values);
  OK;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **values, void **extra) {
  if (!file) OK;
  fprintf(file, "%lx %u,%u,%u %u %u %lx ", (unsigned long)function, config->gridDimX, config->gridDimY,
          config->gridDimZ, config->blockDimX, config->sharedMemBytes, (unsigned long)config->hStream);
  for (unsigned i = 0; i < config->numAttrs; i++) fprintf(file, ":%d", (int)config->attrs[i].id);
  write_parameters(function, values);
  OK;
}
