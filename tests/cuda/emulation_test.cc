// The emulation of CUDA blocks itself: what threads of a block see of each other, and that a kernel which is wrong on a
// GPU is not right here.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "core/abi/base.h"

namespace {

using switchyard::ApproximateExp2;
using switchyard::ApproximateLog2;
using switchyard::ApproximateReciprocal;
using switchyard::Launch;
using switchyard::LeastOrNan;
using switchyard::emulation::RunGrid;

void Wait(cudaError_t launched) {
  ASSERT_EQ(launched, cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

__global__ void WriteCoordinates(int* out) {
  const int block = static_cast<int>(blockIdx.x + gridDim.x * blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x + blockDim.x * threadIdx.y);
  out[block * static_cast<int>(blockDim.x * blockDim.y) + thread] = 100 * block + thread;
}

TEST(CudaEmulation, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int> out(6 * 8, -1);
  Wait(Launch(WriteCoordinates, dim3(3, 2), dim3(4, 2), 0, nullptr, out.data()));
  for (int i = 0; i < 48; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], 100 * (i / 8) + i % 8);
}

// Each thread passes its number to its left neighbour through shared memory.
template <bool kBarrier>
__global__ void PassLeft(int* out) {
  SWITCHYARD_DYNAMIC_SHARED(int, numbers);
  numbers[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (kBarrier) __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = numbers[(threadIdx.x + 1) % blockDim.x];
}

TEST(CudaEmulation, ABarrierMakesWritesVisible) {
  std::vector<int> out(2 * 70);
  Wait(Launch(PassLeft<true>, dim3(2), dim3(70), 70 * sizeof(int), nullptr, out.data()));
  for (int i = 0; i < 140; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], (i % 70 + 1) % 70);
}

TEST(CudaEmulation, AMissingBarrierShows) {
  std::vector<int> out(2 * 70);
  Wait(Launch(PassLeft<false>, dim3(2), dim3(70), 70 * sizeof(int), nullptr, out.data()));
  int wrong = 0;
  for (int i = 0; i < 140; ++i) wrong += out[static_cast<size_t>(i)] != (i % 70 + 1) % 70;
  EXPECT_GT(wrong, 60);
}

// Each thread copies 16 bytes into shared memory and reads its own.
template <bool kWaits>
__global__ void CopyAndRead(const int* from, int* out) {
  SWITCHYARD_DYNAMIC_SHARED(int, numbers);
  const int at = 4 * static_cast<int>(threadIdx.x);
  switchyard::CopyAsync(numbers + at, from + at, threadIdx.x % 2 == 0);
  switchyard::CommitCopies();
  if (kWaits) switchyard::WaitForCopies<0>();
  out[threadIdx.x] = numbers[at + 3];
}

TEST(CudaEmulation, ACopyIsThereOnceItWasWaitedFor) {
  alignas(16) int from[32];
  for (int i = 0; i < 32; ++i) from[i] = i;
  std::vector<int> out(8), early(8);
  Wait(Launch(CopyAndRead<true>, dim3(1), dim3(8), 32 * sizeof(int), nullptr, from, out.data()));
  Wait(Launch(CopyAndRead<false>, dim3(1), dim3(8), 32 * sizeof(int), nullptr, from, early.data()));
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(out[static_cast<size_t>(i)], i % 2 == 0 ? 4 * i + 3 : 0) << i;
    EXPECT_EQ(early[static_cast<size_t>(i)], -1) << i;  // the poison of shared memory
  }
}

__global__ void SumOfWarp(float* out) {
  float x = static_cast<float>(threadIdx.x);
  for (int bits = 16; bits > 0; bits /= 2) x += __shfl_xor_sync(~0u, x, bits);
  const int half = __shfl_sync(~0u, static_cast<int>(threadIdx.x), 3, 16);
  out[threadIdx.x] = x + 1000 * static_cast<float>(half);
}

TEST(CudaEmulation, WarpsExchangeAmongThemselves) {
  std::vector<float> out(64);
  Wait(Launch(SumOfWarp, dim3(1), dim3(64), 0, nullptr, out.data()));
  for (int i = 0; i < 64; ++i) {
    const float sum = i < 32 ? 496 : 1520, third = static_cast<float>(i / 16 * 16 + 3);
    EXPECT_EQ(out[static_cast<size_t>(i)], sum + 1000 * third) << i;
  }
}

// c (16, 8) = a (16, 16) · bᵀ, b (8, 16) with a second, unused half; or · b of (16, 8), read transposed.
template <bool kTransposed>
__global__ void MatrixProduct(const uint16_t* a, const uint16_t* b, float* c) {
  const int lane = static_cast<int>(threadIdx.x), row = lane % 8, matrix = lane / 8;
  uint32_t left[4], right[4];
  switchyard::LoadMatrices(a + (matrix % 2 * 8 + row) * 16 + matrix / 2 * 8, left);
  if (kTransposed) {
    switchyard::LoadMatricesTransposed(b + (matrix % 2 * 8 + row) * 8, right);
  } else {
    switchyard::LoadMatrices(b + row * 16 + matrix % 2 * 8, right);
  }
  float sum[4] = {};
  switchyard::MultiplyFragments<SY_BF16>(left, right[0], right[1], sum);
  for (int e = 0; e < 4; ++e) c[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = sum[e];
}

uint16_t Bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

TEST(CudaEmulation, TensorCoresMultiplyMatrices) {
  alignas(16) uint16_t a[256], b[128], b_transposed[128];
  const auto a_at = [](int i, int k) { return static_cast<float>((i * 5 + k * 3) % 11 - 4); };
  const auto b_at = [](int k, int j) { return static_cast<float>((k * 7 + j) % 9 - 3); };
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 16; ++k) a[16 * i + k] = Bf16(a_at(i, k));
  for (int k = 0; k < 16; ++k)
    for (int j = 0; j < 8; ++j) b[16 * j + k] = b_transposed[8 * k + j] = Bf16(b_at(k, j));
  std::vector<float> c(128), again(128);
  Wait(Launch(MatrixProduct<false>, dim3(1), dim3(32), 0, nullptr, a, b, c.data()));
  Wait(Launch(MatrixProduct<true>, dim3(1), dim3(32), 0, nullptr, a, b_transposed, again.data()));
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += a_at(i, k) * b_at(k, j);
      EXPECT_EQ(c[static_cast<size_t>(8 * i + j)], sum) << i << ", " << j;
      EXPECT_EQ(again[static_cast<size_t>(8 * i + j)], sum) << i << ", " << j;
    }
  }
}

__global__ void Accumulate(float* sum) {
  SWITCHYARD_DYNAMIC_SHARED(float, poisoned);
  *sum = poisoned[0];
}

TEST(CudaEmulation, ApproximationsHaveNoDenormals) {
  const float denormal = std::numeric_limits<float>::denorm_min(), infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ApproximateExp2(-126), std::numeric_limits<float>::min());
  EXPECT_EQ(ApproximateExp2(-127), 0);
  EXPECT_EQ(ApproximateExp2(-infinity), 0);
  EXPECT_EQ(ApproximateLog2(8), 3);
  EXPECT_EQ(ApproximateLog2(denormal), -infinity);
  EXPECT_EQ(ApproximateReciprocal(4), 0.25f);
  EXPECT_EQ(ApproximateReciprocal(denormal), infinity);
  EXPECT_EQ(ApproximateReciprocal(std::numeric_limits<float>::max()), 0);
}

TEST(CudaEmulation, TheLeastKeepsWhatIsNotANumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(LeastOrNan(1, 2), 1);
  EXPECT_EQ(LeastOrNan(2, -1), -1);
  EXPECT_TRUE(std::isnan(LeastOrNan(nan, 1)));
  EXPECT_TRUE(std::isnan(LeastOrNan(1, nan)));
}

TEST(CudaEmulation, SharedMemoryStartsAsNoNumber) {
  float sum = 0;
  Wait(Launch(Accumulate, dim3(1), dim3(1), sizeof(float), nullptr, &sum));
  EXPECT_TRUE(std::isnan(sum));
}

TEST(CudaEmulation, WhatAGpuRefusesIsRefused) {
  int out = 0;
  EXPECT_EQ(Launch(WriteCoordinates, dim3(1), dim3(1025), 0, nullptr, &out), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(WriteCoordinates, dim3(0), dim3(1), 0, nullptr, &out), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(WriteCoordinates, dim3(1, 65536), dim3(1), 0, nullptr, &out), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(WriteCoordinates, dim3(1), dim3(1), (48 << 10) + 1, nullptr, &out), cudaErrorInvalidConfiguration);
}

__global__ void WriteTo(int* address) { *address = 1; }

TEST(CudaEmulationDeath, AWildAddressLosesTheDevice) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a forked process has no stream threads
  EXPECT_EXIT(
      {
        Launch(WriteTo, dim3(1), dim3(1), 0, nullptr, reinterpret_cast<int*>(8));
        const bool lost = cudaStreamSynchronize(nullptr) == cudaErrorIllegalAddress;
        std::_Exit(lost && cudaStreamSynchronize(nullptr) == cudaErrorIllegalAddress ? 0 : 1);
      },
      testing::ExitedWithCode(0), "thread .0, 0, 0.: illegal address");
}

TEST(CudaEmulationDeath, WrongKernelsEndTheProcess) {
  const dim3 one(1), warp(32);
  EXPECT_DEATH(RunGrid(one, dim3(64), 0,
                       [] {
                         if (threadIdx.x < 32) __syncwarp();
                         if (threadIdx.x % 2) __syncthreads();
                         if (threadIdx.x == 0) __syncwarp();
                       }),
               "lane that has exited|wait for each other");
  EXPECT_DEATH(RunGrid(one, warp, 0,
                       [] {
                         if (threadIdx.x == 0) return;
                         __shfl_xor_sync(~0u, 1.0f, 1);
                       }),
               "lane that has exited|wait for each other");
  EXPECT_DEATH(RunGrid(one, warp, 0, [] { __syncwarp(0xFFFF); }), "mask lacks the calling lane");
  EXPECT_DEATH(RunGrid(one, one, 16,
                       [] {
                         SWITCHYARD_DYNAMIC_SHARED(char, bytes);
                         bytes[16] = 1;
                       }),
               "beyond the dynamic shared memory");
}

}  // namespace
