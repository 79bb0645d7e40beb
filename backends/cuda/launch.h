// How every kernel of this backend is launched: one host function instead of <<<>>>, so that the same sources compile
// with an ordinary C++ compiler where something else runs the kernels: whoever does that includes its own definition of
// Launch first and defines SWITCHYARD_CUDA_LAUNCH_H_. The arguments are converted to the kernel's parameter types;
// `shared` is the dynamic shared memory of a block, bytes (above 48 KiB the caller raises the kernel's limit with
// cudaFuncSetAttribute in prepare). Returns the launch's own error only: what goes wrong while it runs shows later.
// Thread-safe. https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__EXECUTION.html (cudaLaunchKernel)
#ifndef SWITCHYARD_CUDA_LAUNCH_H_
#define SWITCHYARD_CUDA_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <tuple>
#include <utility>

namespace switchyard {

template <class... P, class... A>
cudaError_t Launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, A&&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "as many arguments as the kernel has parameters");
  std::tuple<P...> values(static_cast<P>(std::forward<A>(arguments))...);
  return std::apply(
      [&](auto&... each) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&each))..., nullptr};
        return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers, shared, stream);
      },
      values);
}

}  // namespace switchyard

#endif  // SWITCHYARD_CUDA_LAUNCH_H_
