// The threads that run row_math.h on a CUDA device, and their launches.
#include <cuda_runtime.h>
#include <piper/nn/cuda/instances.h>
#include <piper/nn/cuda/kernels.h>
#include <piper/nn/cuda/row_math.h>

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace piper::nn::cuda {
namespace {

constexpr int kWarp = 32, kBlock = 256, kLargeBlock = 1024, kStripWarps = 16;
static_assert(kNormStrips % kStripWarps == 0);
// Packs of N elements of a row that a thread keeps sums of, in registers.
template <int N>
constexpr int kPacksOfThread = N == 1 ? 8 : 4;
static_assert(int64_t{kPacksOfThread<1>} * kLargeBlock >= kNormBackwardWidth);
static_assert(int64_t{kPacksOfThread<2>} * kLargeBlock * 2 >= kNormBackwardWidth);
constexpr int kBytesOfPack = 16;  // the widest load

// Without CUDA's <<<>>>, so that what is called is C++: tests/cuda_on_cpu runs it on the CPU.
template <class... Parameters>
void launch(Stream stream, const char* what, void (*kernel)(Parameters...), int64_t blocks,
            dim3 threads, Parameters... parameters) {
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(blocks);
  config.blockDim = threads;
  config.stream = static_cast<cudaStream_t>(stream);
  if (const cudaError_t error = cudaLaunchKernelEx(&config, kernel, parameters...);
      error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // so that the next launch does not find this one's
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

// How many groups of `size` hold n.
constexpr int64_t groups_of(int64_t size, int64_t n) { return (n + size - 1) / size; }

// A warp, or a whole block.
template <int kThreads>
struct Team {
  int thread;

  __device__ bool is_first() const { return thread == 0; }
  __device__ void meet() const {
    if constexpr (kThreads == kWarp)
      __syncwarp();
    else
      __syncthreads();
  }
  template <class F>
  __device__ void each(int64_t n, F f) const {
    for (int64_t i = thread; i < n; i += kThreads) f(i);
  }
  template <class F>
  __device__ auto sum(int64_t n, F f) const {
    decltype(f(int64_t{0})) mine = 0;
    each(n, [&](int64_t i) { mine += f(i); });
    return together(mine, [](auto a, auto b) { return a + b; });
  }
  template <class F>
  __device__ auto max(int64_t n, F f) const {
    decltype(f(int64_t{0})) mine = -INFINITY;
    each(n, [&](int64_t i) {
      const auto one = f(i);
      mine = one > mine ? one : mine;
    });
    return together(mine, [](auto a, auto b) { return a > b ? a : b; });
  }

 private:
  // The same bits for every thread: the shuffle's tree is symmetric, and every thread goes over the
  // warps in the same order.
  template <class A, class Op>
  __device__ A together(A mine, Op op) const {
    for (int far = kWarp / 2; far > 0; far /= 2)
      mine = op(mine, __shfl_xor_sync(0xffffffffU, mine, far));
    if constexpr (kThreads == kWarp) return mine;
    __shared__ A of_warp[kThreads / kWarp];
    if (thread % kWarp == 0) of_warp[thread / kWarp] = mine;
    __syncthreads();
    A all = of_warp[0];
    for (int warp = 1; warp < kThreads / kWarp; ++warp) all = op(all, of_warp[warp]);
    __syncthreads();
    return all;
  }
};

// The weight's gradient of a strip of rows, by the threads of its team.
template <int kThreads, int N, class M>
struct StripSums {
  Pack<M, N> of[kPacksOfThread<N>] = {};

  template <class F>
  __device__ void each(const Team<kThreads>& team, int64_t n, F f) {
#pragma unroll
    for (int i = 0; i < kPacksOfThread<N>; ++i) {
      const int64_t p = team.thread + int64_t{i} * kThreads;
      if (p < n) f(p, of[i]);
    }
  }
  __device__ void store_to(const Team<kThreads>& team, M* strip, int64_t n) {
    each(team, n, [&](int64_t p, const Pack<M, N>& sum) { store<N>(strip, p, sum); });
  }
};

template <class F>
__global__ void run_each(int64_t n, F f) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) f(i);
}

template <class F>
void each(Stream stream, const char* what, int64_t n, F f) {
  if (n == 0) return;
  launch(stream, what, run_each<F>, groups_of(kBlock, n), kBlock, n, f);
}

// f(team, row) for every row; a team of a warp has neighbours in its block.
template <int kThreads, class F>
__global__ void __launch_bounds__(kThreads == kWarp ? kBlock : kThreads) run_rows(int64_t n, F f) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row < n) f(Team<kThreads>{static_cast<int>(threadIdx.x)}, row);
}

template <int kThreads, class F>
void each_row(Stream stream, const char* what, int64_t n, F f) {
  if (n == 0) return;
  constexpr int kTeams = kThreads == kWarp ? kBlock / kWarp : 1;
  launch(stream, what, run_rows<kThreads, F>, groups_of(kTeams, n), dim3(kThreads, kTeams), n, f);
}

template <class T>
constexpr int kWidest = kBytesOfPack / static_cast<int>(sizeof(T));

bool is_aligned(std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers)
    if (reinterpret_cast<uintptr_t>(pointer) % kBytesOfPack != 0) return false;
  return true;
}
template <class T>
bool has_packs(const Rows<T>& rows) {
  constexpr int64_t n = kWidest<std::remove_const_t<T>>;
  return is_aligned({rows.data}) && rows.s0 % n == 0 && rows.s1 % n == 0 && rows.width % n == 0;
}

template <int N>
struct PackOf {
  static constexpr int n = N;
};
// Calls f(PackOf<N>{}): the widest pack where everything is aligned to it, else single elements.
template <class T, class F>
void by_pack(bool has_wide, F f) {
  if (has_wide)
    f(PackOf<kWidest<T>>{});
  else
    f(PackOf<1>{});
}
template <int kThreads>
struct TeamOf {
  static constexpr int threads = kThreads;
};
// Calls f(TeamOf<threads>{}): as many as have something to do in a row of so many packs.
template <class F>
void by_team(int64_t packs, F f) {
  if (packs <= 2 * kWarp)
    f(TeamOf<kWarp>{});
  else if (packs <= kPacksOfThread<2> * kBlock)
    f(TeamOf<kBlock>{});
  else
    f(TeamOf<kLargeBlock>{});
}

// nvcc wants a function with a name around a lambda of the device.
template <int N, int kThreads, class T>
void norm_rows(Stream stream, Rows<const T> x, const T* weight, Main<T> epsilon, Rows<T> y) {
  each_row<kThreads>(stream, "rms_norm", x.n0 * x.n1,
                     [=] __device__(const Team<kThreads>& team, int64_t row) {
                       norm_row<N>(team, x.row(row / x.n1, row % x.n1), weight, epsilon,
                                   y.row(row / x.n1, row % x.n1), x.width);
                     });
}

template <int N, int kThreads, class T>
void norm_rows_backward(Stream stream, Rows<T> g, Rows<const T> x, const T* weight, Main<T> epsilon,
                        Rows<const T> residual, Main<T>* strips) {
  using M = Main<T>;
  const int64_t rows = x.n0 * x.n1;
  each_row<kThreads>(stream, "rms_norm_backward", kNormStrips,
                     [=] __device__(const Team<kThreads>& team, int64_t strip) {
                       StripSums<kThreads, N, M> sums;
                       for (int64_t row = strip; row < rows; row += kNormStrips) {
                         const int64_t i = row / x.n1, j = row % x.n1;
                         norm_row_backward<N>(
                             team, g.row(i, j), x.row(i, j), weight,
                             residual.data == nullptr ? nullptr : residual.row(i, j), epsilon,
                             x.width, sums);
                       }
                       if (strips != nullptr)
                         sums.store_to(team, strips + strip * x.width, x.width / N);
                     });
}

// A block adds up as many columns as a warp has threads; its warps share the strips.
template <class M>
__global__ void __launch_bounds__(kWarp* kStripWarps)
    run_strips(const M* strips, int64_t width, double beta, M* gradient) {
  __shared__ M of_warp[kStripWarps][kWarp];
  const int64_t d = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  constexpr int64_t kEach = kNormStrips / kStripWarps;
  of_warp[threadIdx.y][threadIdx.x] =
      d < width ? sum_of_strips(d, strips + threadIdx.y * kEach * width, kEach, width) : M(0);
  __syncthreads();
  if (threadIdx.y != 0 || d >= width) return;
  M sum = beta == 0 ? M(0) : gradient[d];
  for (int warp = 0; warp < kStripWarps; ++warp) sum += of_warp[warp][threadIdx.x];
  gradient[d] = sum;
}

template <class M>
void add_strips(Stream stream, const M* strips, int64_t width, double beta, M* gradient) {
  launch(stream, "rms_norm_backward", run_strips<M>, groups_of(kWarp, width),
         dim3(kWarp, kStripWarps), strips, width, beta, gradient);
}

template <int N, class T>
void all_swiglu(Stream stream, const T* h, T* act, int64_t n, int64_t ffn) {
  each(stream, "swiglu", n * (ffn / N),
       [=] __device__(int64_t i) { swiglu_at<N>(i, h, act, ffn); });
}

template <int N, class T>
void all_swiglu_backward(Stream stream, T* h, T* g_act, int64_t n, int64_t ffn) {
  each(stream, "swiglu_backward", n * (ffn / N),
       [=] __device__(int64_t i) { swiglu_backward_at<N>(i, h, g_act, ffn); });
}

template <int N, class T>
void all_gathered(Stream stream, const T* x, const int32_t* index, T* out, int64_t n,
                  int64_t width) {
  each(stream, "gather_rows", n * (width / N),
       [=] __device__(int64_t i) { gather_row_at<N>(i, x, index, out, width); });
}

template <int N, class T>
void all_summed(Stream stream, const T* rows, const Main<T>* weights, const int32_t* position,
                const T* x1, T* out, int64_t tokens, int64_t k, int64_t width) {
  each(stream, "merge", tokens * (width / N), [=] __device__(int64_t i) {
    sum_rows_at<N>(i, rows, weights, position, x1, out, k, width);
  });
}

template <int N, int kThreads, class T>
void merge_rows_backward(Stream stream, const T* gx, const T* returned, const Main<T>* weights,
                         const int32_t* position, T* g_returned, Main<T>* g_weights, RowRange own,
                         int64_t tokens, int64_t k, int64_t width) {
  each_row<kThreads>(stream, "merge_backward", tokens,
                     [=] __device__(const Team<kThreads>& team, int64_t token) {
                       merge_row_backward<N>(team, token, gx, returned, weights, position,
                                             g_returned, g_weights, own, k, width);
                     });
}

template <int N, int kThreads, class T>
void add_all_rows(Stream stream, Main<T>* table, const int64_t* sorted, const int64_t* order,
                  const T* rows, int64_t n, int64_t width) {
  each_row<kThreads>(stream, "add_rows", n, [=] __device__(const Team<kThreads>& team, int64_t i) {
    add_equal_rows<N>(team, i, sorted, order, rows, table, n, width);
  });
}

template <int N, int kThreads, class T>
void cross_entropy_rows(Stream stream, T* logits, const int64_t* target, double* losses, int64_t n,
                        int64_t vocabulary, bool gradient, double scale) {
  each_row<kThreads>(
      stream, "cross_entropy", n, [=] __device__(const Team<kThreads>& team, int64_t row) {
        const double loss = cross_entropy_row<N>(team, logits + row * vocabulary, target[row],
                                                 vocabulary, gradient, scale);
        if (team.is_first()) losses[row] = loss;
      });
}

template <int N, class T>
void all_adamw(Stream stream, T* w, const T* gradient, T* m, T* v, c10::BFloat16* rounded,
               int64_t n, AdamWScalars<T> s) {
  each(stream, "adamw", n / N,
       [=] __device__(int64_t i) { adamw_at<N>(i, w, gradient, m, v, rounded, s); });
}

template <int N>
void all_squares(Stream stream, const float* x, int64_t packs, double* parts) {
  each_row<kBlock>(stream, "sum_of_squares", kSquareParts,
                   [=] __device__(const Team<kBlock>& team, int64_t part) {
                     const double sum = squares_of_part<N>(team, x, packs, part, kSquareParts);
                     if (team.is_first()) parts[part] = sum;
                   });
}

template <class T>
void adamw_of(Stream stream, T* w, const T* gradient, T* m, T* v, c10::BFloat16* rounded, int64_t n,
              const AdamWScalars<T>& s) {
  const bool whole_packs =
      reinterpret_cast<uintptr_t>(rounded) % (kWidest<T> * sizeof(c10::BFloat16)) == 0;
  by_pack<T>(n % kWidest<T> == 0 && is_aligned({w, gradient, m, v}) && whole_packs, [&](auto pack) {
    all_adamw<decltype(pack)::n>(stream, w, gradient, m, v, rounded, n, s);
  });
}

}  // namespace

int compute_capability(int device) {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  static_cast<void>(cudaGetLastError());  // no launch's
  return 10 * major + minor;
}

bool has_driver() {
  static const bool found = [] {
    int devices = 0;
    const bool works = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
    static_cast<void>(cudaGetLastError());
    return works;
  }();
  return found;
}

template <class T>
void rms_norm(Stream stream, Rows<const T> x, const T* weight, double epsilon, Rows<T> y) {
  by_pack<T>(has_packs(x) && has_packs(y) && is_aligned({weight}), [&](auto pack) {
    by_team(x.width / pack.n, [&](auto team) {
      norm_rows<decltype(pack)::n, decltype(team)::threads>(stream, x, weight,
                                                            static_cast<Main<T>>(epsilon), y);
    });
  });
}

template <class T>
void rms_norm_backward(Stream stream, Rows<T> g, Rows<const T> x, const T* weight, double epsilon,
                       Main<T>* weight_gradient, double beta, Rows<const T> residual,
                       Main<T>* strips) {
  const bool wide = has_packs(g) && has_packs(x) && is_aligned({weight}) &&
                    (residual.data == nullptr || has_packs(residual));
  by_pack<T>(wide, [&](auto pack) {
    // A block for each strip, however short a row is: of warps there would be too few.
    by_team(std::max<int64_t>(x.width / pack.n, 2 * kWarp + 1), [&](auto team) {
      norm_rows_backward<decltype(pack)::n, decltype(team)::threads>(
          stream, g, x, weight, static_cast<Main<T>>(epsilon), residual, strips);
    });
  });
  if (weight_gradient != nullptr) add_strips(stream, strips, x.width, beta, weight_gradient);
}

template <class T>
void rotate(Stream stream, Rows<T> x, const Main<T>* cosine, const Main<T>* sine, int64_t sequence,
            int64_t half, Main<T> direction, bool interleaved) {
  each(stream, "rotate", x.n0 * x.n1 * half, [=] __device__(int64_t i) {
    rotate_at(i, x, cosine, sine, sequence, half, direction, interleaved);
  });
}

template <class T>
void swiglu(Stream stream, const T* h, T* act, int64_t n, int64_t ffn) {
  by_pack<T>(ffn % kWidest<T> == 0 && is_aligned({h, act}),
             [&](auto pack) { all_swiglu<decltype(pack)::n>(stream, h, act, n, ffn); });
}

template <class T>
void swiglu_backward(Stream stream, T* h, T* g_act, int64_t n, int64_t ffn) {
  by_pack<T>(ffn % kWidest<T> == 0 && is_aligned({h, g_act}),
             [&](auto pack) { all_swiglu_backward<decltype(pack)::n>(stream, h, g_act, n, ffn); });
}

template <class T>
void gather_rows(Stream stream, const T* x, const int32_t* index, T* out, int64_t n,
                 int64_t width) {
  by_pack<T>(width % kWidest<T> == 0 && is_aligned({x, out}),
             [&](auto pack) { all_gathered<decltype(pack)::n>(stream, x, index, out, n, width); });
}

template <class T>
void sum_rows(Stream stream, const T* rows, const int32_t* position, T* out, int64_t tokens,
              int64_t k, int64_t width) {
  by_pack<T>(width % kWidest<T> == 0 && is_aligned({rows, out}), [&](auto pack) {
    all_summed<decltype(pack)::n, T>(stream, rows, nullptr, position, nullptr, out, tokens, k,
                                     width);
  });
}

template <class T>
void add_rows(Stream stream, Main<T>* table, const int64_t* sorted, const int64_t* order,
              const T* rows, int64_t n, int64_t width) {
  // A row of the table is the wider one.
  constexpr bool same = sizeof(T) == sizeof(Main<T>);
  by_pack<T>(same && width % kWidest<T> == 0 && is_aligned({table, rows}), [&](auto pack) {
    by_team(width / pack.n, [&](auto team) {
      add_all_rows<decltype(pack)::n, decltype(team)::threads>(stream, table, sorted, order, rows,
                                                               n, width);
    });
  });
}

template <class T>
void merge(Stream stream, const T* returned, const Main<T>* weights, const int32_t* position,
           const T* x1, T* out, int64_t tokens, int64_t k, int64_t width) {
  by_pack<T>(width % kWidest<T> == 0 && is_aligned({returned, x1, out}), [&](auto pack) {
    all_summed<decltype(pack)::n>(stream, returned, weights, position, x1, out, tokens, k, width);
  });
}

template <class T>
void merge_backward(Stream stream, const T* gx, const T* returned, const Main<T>* weights,
                    const int32_t* position, T* g_returned, Main<T>* g_weights, RowRange own,
                    int64_t tokens, int64_t k, int64_t width) {
  const bool wide = width % kWidest<T> == 0 && is_aligned({gx, returned, g_returned});
  by_pack<T>(wide, [&](auto pack) {
    by_team(width / pack.n, [&](auto team) {
      merge_rows_backward<decltype(pack)::n, decltype(team)::threads>(
          stream, gx, returned, weights, position, g_returned, g_weights, own, tokens, k, width);
    });
  });
}

template <class T>
void cross_entropy(Stream stream, T* logits, const int64_t* target, double* losses, int64_t n,
                   int64_t vocabulary, bool gradient, double scale) {
  by_pack<T>(vocabulary % kWidest<T> == 0 && is_aligned({logits}), [&](auto pack) {
    by_team(vocabulary / pack.n, [&](auto team) {
      cross_entropy_rows<decltype(pack)::n, decltype(team)::threads>(
          stream, logits, target, losses, n, vocabulary, gradient, scale);
    });
  });
}

template <class T>
void adamw(Stream stream, T* w, const T* gradient, T* m, T* v, int64_t n,
           const AdamWScalars<T>& scalars) {
  adamw_of(stream, w, gradient, m, v, nullptr, n, scalars);
}

void adamw_rounded(Stream stream, float* w, const float* gradient, float* m, float* v,
                   c10::BFloat16* rounded, int64_t n, const AdamWScalars<float>& scalars) {
  adamw_of(stream, w, gradient, m, v, rounded, n, scalars);
}

void sum_of_squares(Stream stream, const float* x, int64_t n, double* parts) {
  by_pack<float>(n % kWidest<float> == 0 && is_aligned({x}), [&](auto pack) {
    constexpr int kElements = decltype(pack)::n;
    all_squares<kElements>(stream, x, n / kElements, parts);
  });
}

template <class T>
void fill_normal(Stream stream, T* target, int64_t count, PartPlaces places, uint64_t seed,
                 uint64_t hashed_name, double range) {
  each(stream, "fill_normal", count, [=] __device__(int64_t i) {
    target[i] = normal_at<T>(static_cast<uint64_t>(places.of(i)), seed, hashed_name, range);
  });
}

PIPER_CUDA_INSTANCES

}  // namespace piper::nn::cuda
