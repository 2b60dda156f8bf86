#pragma once

#include <cstdint>

#include <cuda_runtime.h>

// x and out are [tokens, hidden] in bf16, weight is [hidden].
cudaError_t LaunchRmsNorm(const void* x, const void* weight, void* out, int64_t tokens, int hidden,
                          cudaStream_t stream);
