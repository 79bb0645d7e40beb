// What a disk would hold after a crash. While a RecordedDisk lives, every call of core/train/file_calls.h below its
// root is made and written down. AfterCrash answers what is left when the machine stops before a given call: what was
// fsynced, and of the rest (bytes of files, names in folders) as much as the caller chooses, since a disk may write
// what it was not asked to write in any order, or never. One fsync may be left out, as if the program had forgotten it.
//
// The root itself is on disk from the start. For one thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/train/file_calls.h"

namespace switchyard {

// Paths relative to the root: a folder's value is "/", a link's "-> target", a file's "=" and its bytes.
using DiskContent = std::map<std::string, std::string>;

class RecordedDisk {
 public:
  explicit RecordedDisk(std::string root);
  ~RecordedDisk();

  int calls() const { return static_cast<int>(operations_.size()); }  // so far, of those that change or fsync
  std::vector<int> Fsyncs() const;                                    // which of them are fsyncs
  std::string Describe(int call) const;                               // "fsync run/checkpoints"

  // What was not fsynced before call `cut`, `forgotten` being an fsync that is left out (or -1).
  std::vector<int> Pending(int cut, int forgotten) const;
  // What the disk holds: all but `lost`, a part of Pending.
  DiskContent AfterCrash(int cut, const std::vector<int>& lost) const;

 private:
  struct Operation {
    enum Kind { kMakeFolder, kMakeFile, kMakeLink, kRename, kRemove, kWrite, kFsync } kind;
    int node = 0;            // the folder whose names change, or the file that is written or fsynced
    int child = 0;           // what the name stands for
    std::string name, text;  // text: the new name, the link's target or the bytes
  };
  struct Node {
    std::string path;                   // as it was made, for Describe
    std::map<std::string, int> inside;  // of a folder, as the running program sees it
  };
  int NodeOf(int folder, const std::string& name) const;  // -1 where it is none of ours
  int Make(int folder, const char* name, Operation::Kind kind, const std::string& text);

  std::string root_;
  std::vector<Node> nodes_;
  std::map<int, int> open_;  // descriptor → node
  std::vector<Operation> operations_;
  FileCalls calls_;
};

// Puts the content into an empty folder.
void WriteDisk(const DiskContent& content, const std::string& folder);

}  // namespace switchyard
