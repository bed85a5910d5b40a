// The kernels as C++, with the cuda_runtime.h of this folder (CMakeLists.txt says so).
#include <piper/nn/cuda/kernels.cu>
