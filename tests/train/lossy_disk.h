// What a disk would hold after a crash. While a RecordedDisk lives, every call of core/train/file_calls.h below its
// root is made and written down. AfterCrash answers what is left when the machine stops before a given call: what was
// fsynced, and of the rest (bytes of files, names in folders) as much as the caller chooses, since a disk may write
// what it was not asked to write in any order, or never. One fsync may be left out, as if the program had forgotten it.
//
// A rename from one folder into another is the new name in one and the end of the old name in the other. By itself a
// disk never writes the end without the new name, which all file systems with a journal see to; but the fsync of one
// folder writes what happened there alone.
//
// The root itself is on disk from the start. Calls may come from several threads; the rest is for one, without calls.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
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
  // Which of them are fsyncs, but for those that had nothing to write: of what was found where it was to be made.
  std::vector<int> Fsyncs() const;
  bool IsFsync(int call) const { return operations_[static_cast<size_t>(call)].kind == Operation::kFsync; }
  std::string Describe(int call) const;  // "fsync run/checkpoints"

  // What was not fsynced before call `cut`, `forgotten` being an fsync that is left out (or -1).
  std::vector<int> Pending(int cut, int forgotten) const;
  // What of it a crash may lose: all, nothing, each single thing, and all but each single thing. None where the machine
  // cannot stop, which is within a call.
  std::vector<std::vector<int>> Losses(int cut, int forgotten) const;
  // What the disk holds: all but `lost`, a part of Pending.
  DiskContent AfterCrash(int cut, const std::vector<int>& lost) const;

 private:
  struct Operation {
    // kMoveOut follows kMoveIn: they are one call.
    enum Kind { kMakeFolder, kMakeFile, kMakeLink, kRename, kMoveIn, kMoveOut, kRemove, kWrite, kFsync } kind;
    int node = 0;            // the folder whose names change, or the file that is written or fsynced
    int child = 0;           // what the name stands for
    std::string name, text;  // text: the new name, the link's target or the bytes
    size_t offset = 0;       // of the bytes in the file
  };
  struct Node {
    std::string path;                   // as it was made, for Describe
    int above = -1;                     // the folder that it lies in; -1: the root's
    std::map<std::string, int> inside;  // of a folder, as the running program sees it
  };
  int NodeOf(int folder, const std::string& name) const;  // -1 where it is none of ours
  int Make(int folder, const char* name, Operation::Kind kind, const std::string& text);
  Node& At(int node) { return nodes_[static_cast<size_t>(node)]; }
  const Node& At(int node) const { return nodes_[static_cast<size_t>(node)]; }

  std::string root_;
  std::mutex mutex_;
  std::vector<Node> nodes_;
  std::map<int, int> open_;  // descriptor → node
  std::vector<Operation> operations_;
  int found_in_ = -1;       // the folder in which the last call found what it was to make
  std::set<int> repeated_;  // fsyncs that followed such a call
  FileCalls calls_;
};

// Puts the content into an empty folder.
void WriteDisk(const DiskContent& content, const std::string& folder);

}  // namespace switchyard
