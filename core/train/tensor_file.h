// Tensors in a file: safetensors (https://huggingface.co/docs/safetensors), the format in which weights are exchanged
// with timm, torchvision and Hugging Face. Layout: 8 bytes little-endian header length, a JSON header
// {"name": {"dtype", "shape", "data_offsets"}, "__metadata__": {text: text}}, then the payload.
//
// Files of ours also carry checksums in "__metadata__": "crc32:<name>" for the payload of each tensor and
// "header_crc32" for the header with its length, so that any flipped bit is found. Files of others have none and load
// all the same. The reader trusts nothing: a bad file is DataLoss with the path and the field, never a crash.
//
// Thread-safe: one TensorFile may be read by many threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/train/file_calls.h"

namespace switchyard {

// A tensor in host memory, rows contiguous. dtype is F64 F32 F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8 or BOOL.
struct NamedTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  const void* data = nullptr;  // shape × element bytes, borrowed; may be null where that is 0
  // Instead of data: puts the bytes from `begin` on into `to`. Called by WriteTensorFile, in order, for each byte once.
  std::function<Status(size_t begin, std::span<std::byte> to)> read = nullptr;
};

// Bytes of one element, or 0 where the dtype is not one of the above.
int64_t ElementBytes(const std::string& dtype);

struct TensorFileSummary {
  int64_t bytes = 0;          // of the whole file
  uint32_t header_crc32 = 0;  // over length and header; the header holds the checksums of all payloads
};

// Writes a file that must not exist yet, and fsyncs it; its name is durable after the folder's next Sync(). Tensors are
// laid out by descending element size, else in the given order. "format": "pt" is added to the metadata (Hugging Face
// asks for it). Each byte is read once: the header, which holds the checksums, is written last. InvalidArgument on a
// repeated name, an unknown dtype or a negative dimension; errors of `read`, and those of file_calls.h on I/O, after
// which no file is left.
StatusOr<TensorFileSummary> WriteTensorFile(const Folder& folder, const std::string& name,
                                            const std::vector<NamedTensor>& tensors,
                                            const std::map<std::string, std::string>& metadata = {});
// The same at a path of the user's.
StatusOr<TensorFileSummary> WriteTensorFile(const std::string& path, const std::vector<NamedTensor>& tensors,
                                            const std::map<std::string, std::string>& metadata = {});

class TensorFile {
 public:
  struct Entry {
    std::string name;
    std::string dtype;
    std::vector<int64_t> shape;
    int64_t offset = 0;  // bytes, from the start of the payload
    int64_t bytes = 0;
  };

  // Reads and checks the header: length, JSON, repeated names, dtypes, shapes against offsets, gaps, overlaps, the
  // file's size and, where there is one, the header's checksum.
  static StatusOr<TensorFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<Entry>& entries() const { return entries_; }  // in the order of the payload
  const Entry* Find(const std::string& name) const;               // nullptr if there is none
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  TensorFileSummary summary() const { return summary_; }

  // Reads the entry's bytes into `destination` and checks them against the checksum, where there is one. On an error
  // the content of `destination` is undefined.
  Status Read(const Entry& entry, void* destination) const;

 private:
  TensorFile() = default;
  Status ReadHeader();

  std::string path_;
  Descriptor file_;
  int64_t payload_ = 0;  // file offset
  std::vector<Entry> entries_;
  std::map<std::string, size_t> index_;  // name → entries_
  std::map<std::string, std::string> metadata_;
  TensorFileSummary summary_;
};

}  // namespace switchyard
