// Kernels with one planted defect each, and kernels of known limit; `which` chooses.
// A line that ends in "DEFECT name" is where a tool must find the defect of kernel `name`.
#include <cuda_runtime.h>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

namespace {

constexpr int kThreads = 256;

// ------------------------------------------------------------------ memcheck

__global__ void write_past_end(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i + n - 8] = x[i & 7];  // DEFECT write_past_end
}

// The next allocation may begin right there: found only if the tool pads allocations.
__global__ void read_past_end(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = x[i + n];  // DEFECT read_past_end
}

__global__ void read_far_past_end(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = x[i + 4096 * n];  // DEFECT read_far_past_end
}

__global__ void misaligned_store(float* out) {
  float2* pairs = reinterpret_cast<float2*>(out + 1);
  pairs[threadIdx.x] = make_float2(1.0f, 2.0f);  // DEFECT misaligned_store
}

__global__ void use_of_freed(const float* freed, float* out) {
  out[threadIdx.x] = freed[threadIdx.x];  // DEFECT use_of_freed
}

__global__ void shared_overrun(float* out, int n) {
  __shared__ float tile[kThreads];
  tile[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x + n * 64];  // DEFECT shared_overrun
}

// ----------------------------------------------------------------- racecheck

__global__ void no_barrier_before_read(const float* x, float* out) {
  __shared__ float tile[kThreads];
  tile[threadIdx.x] = x[threadIdx.x];  // DEFECT no_barrier_before_read
  out[threadIdx.x] = tile[(threadIdx.x + 64) % kThreads];  // DEFECT no_barrier_before_read
}

__global__ void no_barrier_in_reduction(const float* x, float* out) {
  __shared__ float tile[kThreads];
  tile[threadIdx.x] = x[threadIdx.x];  // DEFECT no_barrier_in_reduction
  __syncthreads();
  for (int stride = kThreads / 2; stride > 0; stride /= 2) {
    if (threadIdx.x < stride) tile[threadIdx.x] += tile[threadIdx.x + stride];  // DEFECT no_barrier_in_reduction
  }
  if (threadIdx.x == 0) out[0] = tile[0];
}

__global__ void write_after_read(const float* x, float* out) {
  __shared__ float tile[kThreads];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  float value = tile[(threadIdx.x + 64) % kThreads];  // DEFECT write_after_read
  tile[threadIdx.x] = 2.0f * value;  // DEFECT write_after_read
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];
}

__global__ void two_writers(float* out) {
  __shared__ float tile[32];
  tile[threadIdx.x % 32] = static_cast<float>(threadIdx.x);  // DEFECT two_writers
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x % 32];
}

// ----------------------------------------------------------------- initcheck

__global__ void adds_to_output(const float* x, float* out) {
  out[threadIdx.x] += x[threadIdx.x];  // DEFECT adds_to_output
}

__global__ void reads_scratch(const float* scratch, float* out) {
  out[threadIdx.x] = scratch[threadIdx.x];  // DEFECT reads_scratch
}

__global__ void reads_second_half(const float* scratch, float* out) {
  out[threadIdx.x] = scratch[threadIdx.x];  // DEFECT reads_second_half
}

__global__ void writes_even(float* scratch) { scratch[2 * threadIdx.x] = 1.0f; }

__global__ void reads_odd_too(const float* scratch, float* out) {
  out[threadIdx.x] = scratch[threadIdx.x];  // DEFECT reads_odd_too
}

// ----------------------------------------------------------------- synccheck

// Threads that have ended count as arrived since Volta; these others wait at the next barrier.
__global__ void barrier_in_branch(float* out) {
  out[threadIdx.x] = 1.0f;
  if (threadIdx.x % 2) {
    __syncthreads();  // DEFECT barrier_in_branch
    out[threadIdx.x] += out[threadIdx.x - 1];
  }
  __syncthreads();  // DEFECT barrier_in_branch
  out[threadIdx.x] *= out[threadIdx.x ^ 64];
}

__global__ void barrier_in_both_branches(float* out) {
  if (threadIdx.x % 2) {
    out[threadIdx.x] = 1.0f;
    __syncthreads();  // DEFECT barrier_in_both_branches
    out[threadIdx.x] += out[threadIdx.x - 1];
  } else {
    out[threadIdx.x] = 2.0f;
    __syncthreads();  // DEFECT barrier_in_both_branches
    out[threadIdx.x] *= out[threadIdx.x + 1];
  }
}

__global__ void mask_without_caller(float* out) {
  out[threadIdx.x] = 1.0f;
  __syncwarp(0x1);  // DEFECT mask_without_caller
  out[threadIdx.x] += 1.0f;
}

// Lanes 16 to 23 call it, and are not in its mask.
__global__ void warp_barrier_in_branch(float* out) {
  unsigned mask = __ballot_sync(0xffffffff, threadIdx.x % 32 < 16);
  if (threadIdx.x % 32 < 24) {
    out[threadIdx.x] = 1.0f;
    __syncwarp(mask);  // DEFECT warp_barrier_in_branch
    out[threadIdx.x] += 1.0f;
  }
}

// -------------------------------------------------------------- known limits

__global__ void large_copy(const float4* from, float4* to, long count) {
  long step = static_cast<long>(gridDim.x) * blockDim.x;
  for (long i = static_cast<long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) to[i] = from[i];
}

__global__ void chase_setup(int* next, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) next[i] = static_cast<int>((static_cast<long>(i) + 1048583L) % count);
}

__global__ void pointer_chase(const int* next, int steps, float* out) {
  int at = 0;
  for (int i = 0; i < steps; ++i) at = next[at];
  out[0] = static_cast<float>(at);
}

__global__ void tiny(float* out) { out[threadIdx.x] = 1.0f; }

void check(cudaError_t error) {
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(error);
}

float* allocated(size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes));
  return static_cast<float*>(memory);
}

void profiled(float* out) {
  constexpr long kBytes = 1L << 30;
  constexpr int kCount = 1 << 26;
  float* from = allocated(kBytes);
  float* to = allocated(kBytes);
  int* next = reinterpret_cast<int*>(allocated(sizeof(int) * kCount));
  large_copy<<<132 * 16, 512>>>(reinterpret_cast<float4*>(from), reinterpret_cast<float4*>(to), kBytes / 16);
  chase_setup<<<kCount / kThreads, kThreads>>>(next, kCount);
  pointer_chase<<<1, 1>>>(next, 2000, out);
  tiny<<<1, 32>>>(out);
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
  check(cudaFree(from));
  check(cudaFree(to));
  check(cudaFree(next));
}

void run(tvm::ffi::TensorView x_, int64_t which, tvm::ffi::TensorView out_) {
  const float* x = static_cast<const float*>(x_.data_ptr());
  float* out = static_cast<float*>(out_.data_ptr());
  int n = static_cast<int>(x_.size(0));
  float* scratch = nullptr;
  switch (which) {
    case 0: write_past_end<<<1, kThreads>>>(x, out, n); break;
    case 1: read_past_end<<<1, kThreads>>>(x, out, n); break;
    case 2: misaligned_store<<<1, kThreads>>>(out); break;
    case 3:
      scratch = allocated(4 * kThreads);
      check(cudaFree(scratch));
      use_of_freed<<<1, kThreads>>>(scratch, out);
      break;
    case 4: shared_overrun<<<1, kThreads>>>(out, n); break;
    case 5: read_far_past_end<<<1, kThreads>>>(x, out, n); break;
    case 10:
      no_barrier_before_read<<<1, kThreads>>>(x, out);
      no_barrier_in_reduction<<<1, kThreads>>>(x, out);
      write_after_read<<<1, kThreads>>>(x, out);
      two_writers<<<1, kThreads>>>(out);
      break;
    case 20:
      adds_to_output<<<1, kThreads>>>(x, out);
      scratch = allocated(4 * kThreads);
      reads_scratch<<<1, kThreads>>>(scratch, out);
      scratch = allocated(4 * kThreads);
      check(cudaMemset(scratch, 0, 2 * kThreads));
      reads_second_half<<<1, kThreads>>>(scratch, out);
      scratch = allocated(4 * kThreads);
      writes_even<<<1, kThreads / 2>>>(scratch);
      reads_odd_too<<<1, kThreads>>>(scratch, out);
      break;
    case 30: barrier_in_branch<<<1, kThreads>>>(out); break;
    case 31: barrier_in_both_branches<<<1, kThreads>>>(out); break;
    case 32: mask_without_caller<<<1, 32>>>(out); break;
    case 33: warp_barrier_in_branch<<<1, 32>>>(out); break;
    case 40: profiled(out); break;
    default: tiny<<<1, 32>>>(out);
  }
  check(cudaGetLastError());
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run)
