// The key-value store of ranks that share a folder: how the kit bootstraps collectives without a network. Thread-safe,
// also between processes.
#pragma once

#include <string>

#include "core/abi/collective.h"

namespace switchyard::conform {

class FileStore {
 public:
  explicit FileStore(std::string folder);
  const sy_store* interface() const { return &interface_; }
  // Waits at most timeout_ms; false: nobody put it.
  bool Wait(const std::string& key, std::string& value, uint64_t timeout_ms) const;
  bool Put(const std::string& key, const std::string& value) const;

 private:
  std::string PathOf(const std::string& key) const;
  std::string folder_;
  sy_store interface_{};
};

}  // namespace switchyard::conform
