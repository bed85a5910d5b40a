// PIPER_EVERYWHERE marks functions that the host and a CUDA device compute by the same source.
#pragma once

#ifdef __CUDACC__
#define PIPER_EVERYWHERE __host__ __device__ __forceinline__
#else
#define PIPER_EVERYWHERE inline
#endif
