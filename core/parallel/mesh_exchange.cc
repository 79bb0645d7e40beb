#include "core/parallel/mesh_exchange.h"

#include "core/runtime/collectives/composition.h"

namespace switchyard {
namespace {

using Bytes = std::vector<char>;

Bytes Joined(const std::vector<Bytes>& parts) {
  Bytes whole;
  for (const Bytes& part : parts) whole.insert(whole.end(), part.begin(), part.end());
  return whole;
}

Bytes Reduced(const std::vector<Bytes>& sent, sy_dtype dtype, int reduction) {
  Bytes result = sent[0];
  for (size_t i = 1; i < sent.size(); ++i)
    Accumulate(result.data(), sent[i].data(), result.size() / BytesOf(dtype), dtype, reduction);
  return result;
}

// Part `part` of `parts` equal ones.
Bytes EqualPart(const Bytes& whole, size_t part, size_t parts) {
  const auto bytes = static_cast<ptrdiff_t>(whole.size() / parts), start = static_cast<ptrdiff_t>(part) * bytes;
  return Bytes(whole.begin() + start, whole.begin() + start + bytes);
}

}  // namespace

std::vector<Bytes> Exchanged(Exchange exchange, const sy_collective_attributes& attributes, sy_dtype dtype,
                             const std::vector<Bytes>& sent) {
  const size_t ranks = sent.size();
  std::vector<Bytes> received(ranks);
  switch (exchange) {
    case Exchange::kAllReduce:
      return std::vector<Bytes>(ranks, Reduced(sent, dtype, attributes.reduction));
    case Exchange::kReduceScatter: {
      const Bytes whole = Reduced(sent, dtype, attributes.reduction);
      for (size_t i = 0; i < ranks; ++i) received[i] = EqualPart(whole, i, ranks);
      return received;
    }
    case Exchange::kAllGather:
      return std::vector<Bytes>(ranks, Joined(sent));
    case Exchange::kBroadcast:
      return std::vector<Bytes>(ranks, sent[static_cast<size_t>(attributes.root)]);
    case Exchange::kAllToAll:
      for (size_t i = 0; i < ranks; ++i) {
        std::vector<Bytes> parts;
        for (const Bytes& from : sent) parts.push_back(EqualPart(from, i, ranks));
        received[i] = Joined(parts);
      }
      return received;
    case Exchange::kSend:
    case Exchange::kReceive:
      break;
  }
  return received;
}

}  // namespace switchyard
