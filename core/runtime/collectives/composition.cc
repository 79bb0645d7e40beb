#include "core/runtime/collectives/composition.h"

#include <algorithm>
#include <bit>

namespace switchyard {
namespace {

float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
uint16_t ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);  // NaN stays NaN
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

// How an element is stored, and in which type it is computed. Integers wrap around, hence unsigned.
template <typename Stored, typename Computed>
struct Plain {
  using Storage = Stored;
  static Computed Load(Stored value) { return static_cast<Computed>(value); }
  static Stored Store(Computed value) { return static_cast<Stored>(value); }
};
struct Bf16 {
  using Storage = uint16_t;
  static float Load(uint16_t value) { return FromBf16(value); }
  static uint16_t Store(float value) { return ToBf16(value); }
};
using F16 = Plain<_Float16, float>;

template <typename T>
T Reduce(T a, T b, int reduction) {
  switch (reduction) {
    case SY_SUM:
      return a + b;
    case SY_PRODUCT:
      return a * b;
    case SY_MAX:
      return a > b || a != a ? a : b;  // NaN wins
    default:
      return a < b || a != a ? a : b;
  }
}

template <typename Element>
void AccumulateAs(void* accumulator, const void* values, uint64_t count, int reduction) {
  auto* out = static_cast<typename Element::Storage*>(accumulator);
  const auto* in = static_cast<const typename Element::Storage*>(values);
  for (uint64_t i = 0; i < count; ++i)
    out[i] = Element::Store(Reduce(Element::Load(out[i]), Element::Load(in[i]), reduction));
}

// Sums and products wrap like unsigned ones; the order of signed ones differs.
template <typename Signed, typename Unsigned>
void AccumulateInteger(void* accumulator, const void* values, uint64_t count, int reduction) {
  const bool wraps = reduction == SY_SUM || reduction == SY_PRODUCT;
  wraps ? AccumulateAs<Plain<Unsigned, Unsigned>>(accumulator, values, count, reduction)
        : AccumulateAs<Plain<Signed, Signed>>(accumulator, values, count, reduction);
}

}  // namespace

uint64_t BytesOf(sy_dtype dtype) { return sy_dtype_bits(dtype) / 8; }

void Accumulate(void* accumulator, const void* values, uint64_t count, sy_dtype dtype, int reduction) {
  switch (dtype) {
    case SY_F32:
      return AccumulateAs<Plain<float, float>>(accumulator, values, count, reduction);
    case SY_BF16:
      return AccumulateAs<Bf16>(accumulator, values, count, reduction);
    case SY_F16:
      return AccumulateAs<F16>(accumulator, values, count, reduction);
    case SY_F64:
      return AccumulateAs<Plain<double, double>>(accumulator, values, count, reduction);
    case SY_I32:
      return AccumulateInteger<int32_t, uint32_t>(accumulator, values, count, reduction);
    case SY_I64:
      return AccumulateInteger<int64_t, uint64_t>(accumulator, values, count, reduction);
    case SY_U8:
      return AccumulateAs<Plain<uint8_t, uint32_t>>(accumulator, values, count, reduction);
  }
}

Status Composition::Exchange(const std::function<void(int, std::vector<sy_transfer>&)>& with_peer) {
  std::vector<sy_transfer> transfers;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) with_peer(peer, transfers);
  }
  return exchange_(transfers);
}

Status Composition::ReduceBlock(const char* send, const std::vector<uint64_t>& offsets, void* result, sy_dtype dtype,
                                int reduction) {
  const uint64_t bytes = offsets[rank_ + 1] - offsets[rank_];
  std::vector<char> blocks(bytes * size_);
  std::copy_n(send + offsets[rank_], bytes, blocks.data() + bytes * rank_);
  SY_RETURN_IF_ERROR(Exchange([&](int peer, std::vector<sy_transfer>& transfers) {
    transfers.push_back({peer, 1, const_cast<char*>(send) + offsets[peer], offsets[peer + 1] - offsets[peer]});
    transfers.push_back({peer, 0, blocks.data() + bytes * peer, bytes});
  }));
  for (int rank = 1; rank < size_; ++rank) {
    Accumulate(blocks.data(), blocks.data() + bytes * rank, bytes / BytesOf(dtype), dtype, reduction);
  }
  std::copy_n(blocks.data(), bytes, static_cast<char*>(result));
  return OkStatus();
}

Status Composition::AllReduce(const void* send, void* receive, uint64_t count, sy_dtype dtype, int reduction) {
  const uint64_t bytes = BytesOf(dtype), share = (count + size_ - 1) / size_;
  std::vector<uint64_t> offsets;
  for (int rank = 0; rank <= size_; ++rank) offsets.push_back(std::min(count, share * rank) * bytes);
  auto* out = static_cast<char*>(receive);
  SY_RETURN_IF_ERROR(ReduceBlock(static_cast<const char*>(send), offsets, out + offsets[rank_], dtype, reduction));
  return Exchange([&](int peer, std::vector<sy_transfer>& transfers) {
    transfers.push_back({peer, 1, out + offsets[rank_], offsets[rank_ + 1] - offsets[rank_]});
    transfers.push_back({peer, 0, out + offsets[peer], offsets[peer + 1] - offsets[peer]});
  });
}

Status Composition::ReduceScatter(const void* send, void* receive, uint64_t count, sy_dtype dtype, int reduction) {
  std::vector<uint64_t> offsets;
  for (int rank = 0; rank <= size_; ++rank) offsets.push_back(count * rank * BytesOf(dtype));
  return ReduceBlock(static_cast<const char*>(send), offsets, receive, dtype, reduction);
}

Status Composition::AllGather(const void* send, void* receive, uint64_t count, sy_dtype dtype) {
  const uint64_t bytes = count * BytesOf(dtype);
  auto* out = static_cast<char*>(receive);
  if (send != out + bytes * rank_) std::copy_n(static_cast<const char*>(send), bytes, out + bytes * rank_);
  return Exchange([&](int peer, std::vector<sy_transfer>& transfers) {
    transfers.push_back({peer, 1, out + bytes * rank_, bytes});
    transfers.push_back({peer, 0, out + bytes * peer, bytes});
  });
}

Status Composition::Broadcast(void* address, uint64_t count, sy_dtype dtype, int root) {
  return Exchange([&](int peer, std::vector<sy_transfer>& transfers) {
    if (rank_ == root)
      transfers.push_back({peer, 1, address, count * BytesOf(dtype)});
    else if (peer == root)
      transfers.push_back({peer, 0, address, count * BytesOf(dtype)});
  });
}

Status Composition::AllToAll(const void* send, void* receive, uint64_t count, sy_dtype dtype) {
  const uint64_t bytes = count * BytesOf(dtype);
  std::vector<char> blocks(static_cast<const char*>(send), static_cast<const char*>(send) + bytes * size_);
  auto* out = static_cast<char*>(receive);
  std::copy_n(blocks.data() + bytes * rank_, bytes, out + bytes * rank_);
  return Exchange([&](int peer, std::vector<sy_transfer>& transfers) {
    transfers.push_back({peer, 1, blocks.data() + bytes * peer, bytes});
    transfers.push_back({peer, 0, out + bytes * peer, bytes});
  });
}

Status Composition::Barrier() {
  std::vector<char> tokens(size_);
  return Exchange([&](int peer, std::vector<sy_transfer>& transfers) {
    transfers.push_back({peer, 1, &tokens[rank_], 1});
    transfers.push_back({peer, 0, &tokens[peer], 1});
  });
}

}  // namespace switchyard
