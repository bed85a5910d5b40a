// A function marked PIPER_EVERYWHERE runs on the host and on a CUDA device, from the same source.
#pragma once

#ifdef __CUDACC__
#define PIPER_EVERYWHERE __host__ __device__ __forceinline__
#else
#define PIPER_EVERYWHERE inline
#endif
