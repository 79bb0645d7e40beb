// One process plays all ranks of a mesh: the graphs of their programs, node by node on the reference plugin, with
// collectives and messages carried out between them. A message waits for its receiver, as a real one may. What a pass
// does to a program is so checked without starting a rank, at 64 ranks as at 2. Reductions add in the order of the
// ranks. Made for correctness, not speed; not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/parallel/mesh.h"
#include "core/runtime/device/device.h"

namespace switchyard {

class Graph;

class MeshInterpreter {
 public:
  // reference: a synchronous device whose memory is the host's, and which offers every op; must outlive it.
  MeshInterpreter(const Mesh& mesh, Device& reference);
  ~MeshInterpreter();

  // What rank `rank` holds under a name: a parameter, a state, a batch input, an output ("loss"). Named inputs that
  // were never set are zero. Get of what is not there is NotFound.
  void Set(int rank, const std::string& name, const void* data, uint64_t bytes);
  StatusOr<std::vector<char>> Get(int rank, const std::string& name) const;

  // Runs graphs[rank] on every rank, until all have ended. Errors name rank and node: an op that the device lacks, a
  // collective on which ranks disagree, ranks that wait for each other (each with what it waits for).
  Status Run(const std::vector<const Graph*>& graphs);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
