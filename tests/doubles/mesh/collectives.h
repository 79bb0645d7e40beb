// The collectives of a doubled library, made of messages of a mesh. Both real libraries and this hang where ranks call
// different things.
#pragma once

#include <cstdint>

#include "tests/doubles/mesh/mesh.h"
#include "tests/doubles/mesh/reduce.h"

namespace doubles {

enum class Kind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kAllToAll };

struct Collective {
  Kind kind;
  const void* send;
  void* receive;  // broadcast: what the root sends, too
  size_t count;   // elements: of the whole for all_reduce and broadcast, else of one rank's block
  Type type;
  Reduction reduction = Reduction::kSum;
  int root = 0;
};

Outcome RunCollective(Mesh& mesh, const Collective& collective);

}  // namespace doubles
