#include "kernels/device.hpp"

#include <cuda_runtime.h>

#include <stdexcept>

namespace tegula {

static void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("[cuda] ") + cudaGetErrorString(error));
}

static void run(const OpInfo& op, const void* attributes, const std::vector<void*>& tiles, DType dtype) {
  std::vector<void*> on_device(tiles.size(), nullptr);
  auto bytes = [&](std::size_t k) {
    const int operand = static_cast<int>(k);
    return op.extent(attributes, operand, dtype) * size_of(op.dtype(operand, dtype));
  };
  for (std::size_t k = 0; k < tiles.size(); ++k) {
    if (tiles[k] == nullptr) continue;
    check(cudaMalloc(&on_device[k], bytes(k) + 1));  // of no bytes, cudaMalloc would give none
    check(cudaMemcpy(on_device[k], tiles[k], bytes(k), cudaMemcpyHostToDevice));
  }
  cudaStream_t stream;
  check(cudaStreamCreate(&stream));
  op.cuda(attributes, on_device.data(), dtype, stream);
  check(cudaStreamSynchronize(stream));
  check(cudaStreamDestroy(stream));
  for (std::size_t k = 0; k < tiles.size(); ++k) {
    if (tiles[k] == nullptr) continue;
    check(cudaMemcpy(tiles[k], on_device[k], bytes(k), cudaMemcpyDeviceToHost));
    check(cudaFree(on_device[k]));
  }
}

static const Device* probe() {
  static const Device device{run};
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 ? &device : nullptr;
}

const bool registered = (detail::probe_device = probe, true);

}  // namespace tegula
