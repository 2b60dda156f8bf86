// Mean squared error in one block, so that no atomic is needed.
#include <cstdint>

#include <cuda_runtime.h>

static __global__ void LossKernel(const float* a, const float* b, float* loss, int64_t count) {
  __shared__ double partial[32];
  double total = 0.0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const double difference = static_cast<double>(a[i]) - b[i];
    total += difference * difference;
  }
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(~0u, total, step);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = total;
  __syncthreads();
  if (threadIdx.x == 0) {
    double sum = 0.0;
    for (double part : partial) sum += part;
    *loss = static_cast<float>(sum / count);
  }
}

cudaError_t LaunchLoss(const float* a, const float* b, float* loss, int64_t count,
                       cudaStream_t stream) {
  LossKernel<<<1, 1024, 0, stream>>>(a, b, loss, count);
  return cudaGetLastError();
}
