#include "tools/conform/promises.h"

namespace switchyard::conform {

const std::vector<Promise>& RefusalPromises() {
  static const auto& promises = *new std::vector<Promise>{
      {"a device index that is not there", {"struct/no_error_wanted", "struct/error_text"}},
      {"`alloc` of 0 bytes", {"refusal/places"}},
      {"a place that does not lie whole inside its buffer, in copy, fill and bind", {"refusal/places", "refusal/bind"}},
      {"a copy from host to host", {"refusal/places"}},
      {"a rank, peer or root outside of the communicator", {"collective/arguments/*"}},
      {"ranks that disagree on a call, where the plugin moves control data", {"collective/mismatch/*"}},
      {"a semaphore that the host raises to what it is already", {"semaphore/host", "semaphore/threads"}},
      {"`stream_signal` and `stream_wait` of a semaphore, on a device without streams", {"semaphore/no_streams"}},
      {"too little room for a description of memory", {"peer/export"}},
      {"in prepare: a rank outside 0 … 8", {"refusal/prepare/*"}},
      {"in prepare: an extent below 1", {"refusal/prepare/*"}},
      {"in prepare: a size beyond 63 bits", {"refusal/prepare/*"}},
      {"in prepare: a count without an array", {"refusal/prepare/*"}},
      {"in prepare: no attributes where the op has some", {"refusal/prepare/*"}},
      {"an argument of `wrap` that makes no sense", {"interposer/argument"}},
      {"counts, shapes, dtypes and attribute values that do not fit the op as `ops.h` specifies it",
       {"argument/*", "struct/refuses_wrong_shapes", "struct/refuses_missing_input"}},
      {"a description of memory that no `export_memory` wrote", {"peer/forged"}},
      {"what the table of unknown values says", {"refusal/unknown_*", "struct/refuses_unknown_*"}},
      {"a workspace limit that does not suffice", {"op/*"}},
      {"a determinism class that is not reached", {"op/*"}},
      {"an output that cannot accumulate", {"op/*/f32"}},
      {"strides that are not taken", {"strides/*"}},
      {"work that cannot be recorded, between `begin` and `end`", {"capture/spoiled"}},
  };
  return promises;
}

const std::vector<Promise>& UnknownValuePromises() {
  static const auto& promises = *new std::vector<Promise>{
      {"op, version of an op, dtype, reduction, memory kind, determinism class; attributes that are not zero behind "
       "the fields it knows",
       {"struct/refuses_unknown_op", "struct/refuses_later_version", "struct/refuses_unknown_dtype",
        "argument/*/other_editions", "collective/arguments/*", "refusal/unknown_memory_kind",
        "refusal/unknown_determinism"}},
      {"interface name", {"refusal/unknown_interfaces"}},
      {"flag bit, field behind the size it knows, extension that is not required",
       {"struct/*_larger", "struct/*_extensions", "collective/extensions/*"}},
      {"tuning level, priority", {"refusal/nearest_levels"}},
      // What the program does with answers of a plugin: tests/runtime/hostile_plugins_test.cc.
      {"status", {}},
      {"address kind, completion (answers of a plugin)", {}},
  };
  return promises;
}

}  // namespace switchyard::conform
