// For collective plugins written in C++: the C table of `collective/2` made from a class, and the text of a call, so
// that ranks which disagree are told apart in the same words by every plugin. The ABI itself is C and does not need
// this header.
//
//   class Communicator {  // its address is the sy_communicator
//     // Fills what query answers; the header is not its business.
//     static void Describe(const sy_instance&, sy_collective_info& info);
//     // Does it take this reduction of this dtype? Both are known to these headers.
//     static bool Reduces(int32_t reduction, sy_dtype);
//     // Does not wait for peers. The request covers all fields.
//     static sy_status Create(const sy_instance&, const sy_init_request&, std::unique_ptr<Communicator>*, sy_error*);
//     sy_status Ready(sy_error*);  // poll
//     // Every collective but messages.
//     sy_status Submit(int32_t kind, const sy_call*, const void* send, void* receive, uint64_t count, sy_dtype,
//                      int32_t reduction, int32_t root, sy_request**, sy_error*);
//     sy_status SubmitMessages(const sy_call*, const sy_transfer*, uint32_t count, sy_request**, sy_error*);
//     // Unless it completes on streams. An ended request stays until it is released; one that has not ended is given
//     // up by Release, which does not wait for peers.
//     sy_status Poll(sy_request*, sy_error*);
//     void Release(sy_request*);
//     sy_status Split(int32_t color, int32_t key, const char* name, std::unique_ptr<Communicator>*, sy_error*);
//     void Abort();  // any thread
//     // Optional: memory that it owns.
//     sy_status Allocate(uint64_t bytes, void**, sy_error*);
//     void Free(void*);
//   };
//   const sy_collective_v2 table = CollectiveTable<Communicator>();
//
// Exceptions of the class become SY_OUT_OF_MEMORY or SY_INTERNAL. Threads: as collective.h says.
#ifndef SWITCHYARD_ABI_COLLECTIVE_CLASS_H_
#define SWITCHYARD_ABI_COLLECTIVE_CLASS_H_

#include <memory>
#include <string>

#include "core/abi/boundary.h"
#include "core/abi/collective.h"

namespace switchyard {

enum CollectiveKind : int32_t {
  kBarrier,
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kMessages,
  kBufferAlloc,
  kSplit,  // calls of the table that ranks make together, but that are not submitted
};

inline const char* NameOf(CollectiveKind kind) {
  static const char* const kNames[] = {"barrier",    "all_reduce",      "reduce_scatter", "all_gather", "broadcast",
                                       "all_to_all", "send_recv_batch", "buffer_alloc",   "split"};
  return kNames[kind];
}

inline size_t BytesOf(sy_dtype dtype) { return sy_dtype_bytes(dtype, 1); }  // of one element; 0 for an unknown dtype

// What a rank calls: everything that the ranks must agree on, and nothing else, so that it can be compared as bytes.
struct CallSignature {
  uint64_t sequence, count;
  int32_t kind, dtype, reduction, root;  // kind is a CollectiveKind
  char tag[64];

  bool operator==(const CallSignature& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};

inline CallSignature SignatureOf(int32_t kind, const sy_call* call, uint64_t count, sy_dtype dtype, int32_t reduction,
                                 int32_t root) {
  CallSignature signature;
  std::memset(&signature, 0, sizeof signature);
  signature.kind = kind;
  signature.count = count;
  signature.dtype = dtype;
  signature.reduction = reduction;
  signature.root = root;
  if (call != nullptr) {
    signature.sequence = call->sequence;
    std::snprintf(signature.tag, sizeof signature.tag, "%s", call->tag == nullptr ? "" : call->tag);
  }
  return signature;
}

// "all_reduce "grad/0" (f32 sum, 100 elements, root 0, call 7)"
inline std::string Describe(const CallSignature& call) {
  static const char* const kReductions[] = {" sum", " max", " min", " product"};
  const bool reduces = call.kind == kAllReduce || call.kind == kReduceScatter;
  return Format("%s \"%.63s\" (%s%s, %llu elements, root %d, call %llu)",
                NameOf(static_cast<CollectiveKind>(call.kind)), call.tag, sy_dtype_name(call.dtype),
                reduces ? kReductions[call.reduction] : "", static_cast<unsigned long long>(call.count), call.root,
                static_cast<unsigned long long>(call.sequence));
}

template <typename Communicator>
sy_collective_v2 CollectiveTable() {
  static constexpr auto kOf = [](sy_communicator* handle) { return reinterpret_cast<Communicator*>(handle); };
  static constexpr auto kAsHandle = [](std::unique_ptr<Communicator> made) {
    return reinterpret_cast<sy_communicator*>(made.release());
  };
  // What another edition may mean is refused before the class sees it.
  static constexpr auto kMove = [](sy_communicator* self, int32_t kind, const sy_call* call, const void* send,
                                   void* receive, uint64_t count, sy_dtype dtype, int32_t reduction, int32_t root,
                                   sy_request** request, sy_error* error) {
    return Guarded(error, [&]() -> sy_status {
      if (!KnowsExtensions(call, error)) return SY_UNSUPPORTED;
      if (BytesOf(dtype) == 0) return SY_FAIL(error, SY_UNSUPPORTED, "the dtype %d is unknown", dtype);
      return kOf(self)->Submit(kind, call, send, receive, count, dtype, reduction, root, request, error);
    });
  };
  static constexpr auto kReduces = [](int32_t reduction, sy_dtype dtype, sy_error* error) {
    if (reduction >= 0 && reduction < SY_REDUCTION_COUNT && BytesOf(dtype) > 0 &&
        Communicator::Reduces(reduction, dtype))
      return sy_status{SY_OK};
    return SY_FAIL(error, SY_UNSUPPORTED, "reduction %d of dtype %d (%s) is not offered", reduction, dtype,
                   sy_dtype_name(dtype));
  };
  sy_collective_v2 table{};
  table.header = SY_HEADER(sy_collective_v2);
  table.query = [](sy_instance* instance, sy_collective_info* info, sy_error* error) {
    if (!KnowsExtensions(info, error)) return sy_status{SY_UNSUPPORTED};
    sy_collective_info own{};
    Communicator::Describe(*instance, own);
    FillStruct(info, own);
    return sy_status{SY_OK};
  };
  table.reduces = [](sy_instance*, int32_t reduction, sy_dtype dtype, sy_error* error) {
    return kReduces(reduction, dtype, error);
  };
  table.init = [](sy_instance* instance, const sy_init_request* request, sy_communicator** communicator,
                  sy_error* error) {
    return Guarded(error, [&]() -> sy_status {
      if (!KnowsExtensions(request, error)) return SY_UNSUPPORTED;
      std::unique_ptr<Communicator> made;
      const sy_status status = Communicator::Create(*instance, ReadStruct(request), &made, error);
      *communicator = status == SY_OK ? kAsHandle(std::move(made)) : nullptr;
      return status;
    });
  };
  table.poll = [](sy_communicator* self, sy_error* error) {
    return Guarded(error, [&] { return kOf(self)->Ready(error); });
  };
  table.send_recv_batch = [](sy_communicator* self, const sy_call* call, const sy_transfer* transfers, uint32_t count,
                             sy_request** request, sy_error* error) {
    return Guarded(error, [&]() -> sy_status {
      if (!KnowsExtensions(call, error)) return SY_UNSUPPORTED;
      return kOf(self)->SubmitMessages(call, transfers, count, request, error);
    });
  };
  table.abort = [](sy_communicator* self) { kOf(self)->Abort(); };
  table.destroy = [](sy_communicator* self) { delete kOf(self); };
  if constexpr (requires(Communicator & self, sy_request * request) { self.Poll(request, nullptr); }) {
    table.request_poll = [](sy_communicator* self, sy_request* request, sy_error* error) {
      return Guarded(error, [&] { return kOf(self)->Poll(request, error); });
    };
    table.request_release = [](sy_communicator* self, sy_request* request) { kOf(self)->Release(request); };
  }
  table.all_reduce = [](sy_communicator* self, const sy_call* call, const void* send, void* receive, uint64_t count,
                        sy_dtype dtype, int32_t reduction, sy_request** request, sy_error* error) {
    if (const sy_status status = kReduces(reduction, dtype, error); status != SY_OK) return status;
    return kMove(self, kAllReduce, call, send, receive, count, dtype, reduction, 0, request, error);
  };
  table.reduce_scatter = [](sy_communicator* self, const sy_call* call, const void* send, void* receive, uint64_t count,
                            sy_dtype dtype, int32_t reduction, sy_request** request, sy_error* error) {
    if (const sy_status status = kReduces(reduction, dtype, error); status != SY_OK) return status;
    return kMove(self, kReduceScatter, call, send, receive, count, dtype, reduction, 0, request, error);
  };
  table.all_gather = [](sy_communicator* self, const sy_call* call, const void* send, void* receive, uint64_t count,
                        sy_dtype dtype, sy_request** request, sy_error* error) {
    return kMove(self, kAllGather, call, send, receive, count, dtype, SY_SUM, 0, request, error);
  };
  table.broadcast = [](sy_communicator* self, const sy_call* call, void* address, uint64_t count, sy_dtype dtype,
                       int32_t root, sy_request** request, sy_error* error) {
    return kMove(self, kBroadcast, call, address, address, count, dtype, SY_SUM, root, request, error);
  };
  table.all_to_all = [](sy_communicator* self, const sy_call* call, const void* send, void* receive, uint64_t count,
                        sy_dtype dtype, sy_request** request, sy_error* error) {
    return kMove(self, kAllToAll, call, send, receive, count, dtype, SY_SUM, 0, request, error);
  };
  table.barrier = [](sy_communicator* self, const sy_call* call, sy_request** request, sy_error* error) {
    return kMove(self, kBarrier, call, nullptr, nullptr, 0, SY_U8, SY_SUM, 0, request, error);
  };
  table.split = [](sy_communicator* self, int32_t color, int32_t key, const char* name, sy_communicator** result,
                   sy_error* error) {
    return Guarded(error, [&] {
      std::unique_ptr<Communicator> made;
      *result = nullptr;
      const sy_status status = kOf(self)->Split(color, key, name, &made, error);
      if (status == SY_OK) *result = kAsHandle(std::move(made));
      return status;
    });
  };
  if constexpr (requires(Communicator & self, void* address) { self.Free(address); }) {
    table.buffer_alloc = [](sy_communicator* self, uint64_t bytes, void** address, sy_error* error) {
      return Guarded(error, [&] { return kOf(self)->Allocate(bytes, address, error); });
    };
    table.buffer_free = [](sy_communicator* self, void* address) { kOf(self)->Free(address); };
  }
  return table;
}

}  // namespace switchyard

#endif  // SWITCHYARD_ABI_COLLECTIVE_CLASS_H_
