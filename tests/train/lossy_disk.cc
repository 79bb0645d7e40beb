#include "tests/train/lossy_disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "gtest/gtest.h"

namespace switchyard {

RecordedDisk::RecordedDisk(std::string root) : root_(std::move(root)), nodes_(1) {
  const FileCalls real = SystemFileCalls();
  calls_ = real;
  calls_.openat = [this, real](int folder, const char* name, int flags, mode_t mode) {
    const std::scoped_lock lock(mutex_);
    const int descriptor = real.openat(folder, name, flags, mode);
    if (descriptor < 0) return descriptor;
    int node = NodeOf(folder, name);
    if (node < 0 && (flags & O_CREAT) != 0) node = Make(folder, name, Operation::kMakeFile, "");
    open_.erase(descriptor);
    if (node >= 0) open_[descriptor] = node;
    if (node >= 0 && name == std::string("..")) found_in_ = node;
    return descriptor;
  };
  calls_.write = [this, real](int descriptor, const void* data, size_t bytes) {
    const std::scoped_lock lock(mutex_);
    const ssize_t written = real.write(descriptor, data, bytes);
    if (written > 0 && open_.contains(descriptor)) {
      const std::string text(static_cast<const char*>(data), static_cast<size_t>(written));
      const auto end = static_cast<size_t>(::lseek(descriptor, 0, SEEK_CUR));
      operations_.push_back({Operation::kWrite, open_[descriptor], 0, "", text, end - text.size()});
    }
    return written;
  };
  calls_.fsync = [this](int descriptor) {  // nothing that a test would have to wait for
    const std::scoped_lock lock(mutex_);
    if (!open_.contains(descriptor)) return 0;
    if (open_[descriptor] == found_in_) repeated_.insert(calls());
    found_in_ = -1;
    operations_.push_back({Operation::kFsync, open_[descriptor], 0, "", ""});
    return 0;
  };
  calls_.mkdirat = [this, real](int folder, const char* name, mode_t mode) {
    const std::scoped_lock lock(mutex_);
    const int result = real.mkdirat(folder, name, mode);
    const int error = errno;
    if (result == 0) Make(folder, name, Operation::kMakeFolder, "");
    if (result < 0 && error == EEXIST && open_.contains(folder)) found_in_ = open_[folder];
    errno = error;
    return result;
  };
  calls_.symlinkat = [this, real](const char* target, int folder, const char* name) {
    const std::scoped_lock lock(mutex_);
    const int result = real.symlinkat(target, folder, name);
    if (result == 0) Make(folder, name, Operation::kMakeLink, target);
    return result;
  };
  calls_.renameat = [this, real](int from_folder, const char* from, int to_folder, const char* to) {
    const std::scoped_lock lock(mutex_);
    const int result = real.renameat(from_folder, from, to_folder, to);
    if (result != 0 || !open_.contains(from_folder)) return result;
    EXPECT_TRUE(open_.contains(to_folder)) << "what leaves the disk cannot be followed";
    const int source = open_[from_folder], target = open_[to_folder], child = At(source).inside.extract(from).mapped();
    At(target).inside[to] = child;
    At(child).above = target;
    if (source == target) {
      operations_.push_back({Operation::kRename, source, child, from, to});
    } else {
      operations_.push_back({Operation::kMoveIn, target, child, to, ""});
      operations_.push_back({Operation::kMoveOut, source, child, from, ""});
    }
    return result;
  };
  calls_.unlinkat = [this, real](int folder, const char* name, int flags) {
    const std::scoped_lock lock(mutex_);
    const int result = real.unlinkat(folder, name, flags);
    if (result == 0 && open_.contains(folder)) {
      At(open_[folder]).inside.erase(name);
      operations_.push_back({Operation::kRemove, open_[folder], 0, name, ""});
    }
    return result;
  };
  ReplaceFileCalls(&calls_);
}

RecordedDisk::~RecordedDisk() { ReplaceFileCalls(nullptr); }

int RecordedDisk::NodeOf(int folder, const std::string& name) const {
  int node = 0;
  std::string rest = name;
  if (folder == AT_FDCWD) {
    if (name.compare(0, root_.size(), root_) != 0) return -1;
    rest = name.substr(root_.size());
  } else {
    const auto found = open_.find(folder);
    if (found == open_.end()) return -1;
    node = found->second;
  }
  for (const auto& part : std::filesystem::path(rest).relative_path()) {
    if (part.empty() || part == ".") continue;
    if (part == "..") {
      node = At(node).above;
      if (node < 0) return -1;
      continue;
    }
    const auto& inside = At(node).inside;
    const auto found = inside.find(part.string());
    if (found == inside.end()) return -1;
    node = found->second;
  }
  return node;
}

int RecordedDisk::Make(int folder, const char* name, Operation::Kind kind, const std::string& text) {
  const auto parent = open_.find(folder);
  if (parent == open_.end()) return -1;
  const int node = static_cast<int>(nodes_.size());
  const std::string& above = At(parent->second).path;
  nodes_.push_back({above + (above.empty() ? "" : "/") + name, parent->second, {}});
  At(parent->second).inside[name] = node;
  operations_.push_back({kind, parent->second, node, name, text});
  return node;
}

std::vector<int> RecordedDisk::Fsyncs() const {
  std::vector<int> fsyncs;
  for (int i = 0; i < calls(); ++i) {
    const Operation& operation = operations_[static_cast<size_t>(i)];
    if (operation.kind != Operation::kFsync) continue;
    const std::vector<int> pending = Pending(i, -1);
    const bool has_work = std::any_of(pending.begin(), pending.end(), [&](int earlier) {
      return operations_[static_cast<size_t>(earlier)].node == operation.node;
    });
    if (has_work || !repeated_.contains(i)) fsyncs.push_back(i);
  }
  return fsyncs;
}

std::string RecordedDisk::Describe(int call) const {
  if (call >= calls()) return "the end";
  const Operation& operation = operations_[static_cast<size_t>(call)];
  constexpr const char* kNames[] = {"make the folder", "make",   "link",  "rename", "move in",
                                    "move out",        "remove", "write", "fsync"};
  std::string path = At(operation.node).path;
  if (path.empty()) path = ".";
  if (!operation.name.empty()) path += "/" + operation.name;
  return std::string(kNames[operation.kind]) + " " + path +
         (operation.kind == Operation::kRename ? " to " + operation.text : "");
}

std::vector<int> RecordedDisk::Pending(int cut, int forgotten) const {
  std::vector<int> pending;
  std::set<int> synced;  // nodes with an fsync after the operation, looking backwards
  for (int i = cut - 1; i >= 0; --i) {
    const Operation& operation = operations_[static_cast<size_t>(i)];
    if (operation.kind == Operation::kFsync) {
      if (i != forgotten) synced.insert(operation.node);
    } else if (!synced.contains(operation.node)) {
      pending.push_back(i);
    }
  }
  return pending;
}

std::vector<std::vector<int>> RecordedDisk::Losses(int cut, int forgotten) const {
  const auto is = [&](int call, Operation::Kind kind) {
    return call < calls() && operations_[static_cast<size_t>(call)].kind == kind;
  };
  if (is(cut, Operation::kMoveOut)) return {};
  const std::vector<int> pending = Pending(cut, forgotten);
  std::vector<std::vector<int>> losses = {pending, {}};
  for (const int one : pending) {
    losses.push_back({one});
    losses.push_back(pending);
    std::erase(losses.back(), one);
  }
  const std::set<int> unwritten(pending.begin(), pending.end());
  for (std::vector<int>& lost : losses) {
    const std::vector<int> chosen = lost;
    for (const int one : chosen) {
      const int end = one + 1;  // of the old name
      if (!is(one, Operation::kMoveIn) || !unwritten.contains(end)) continue;
      if (std::find(chosen.begin(), chosen.end(), end) == chosen.end()) lost.push_back(end);
    }
  }
  return losses;
}

DiskContent RecordedDisk::AfterCrash(int cut, const std::vector<int>& lost) const {
  struct OnDisk {
    std::string value;
    std::map<std::string, int> inside;
  };
  std::vector<OnDisk> disk(nodes_.size());
  for (int i = 0; i < cut; ++i) {
    const Operation& operation = operations_[static_cast<size_t>(i)];
    // What a thing is comes with its name; only its bytes and names may be missing.
    auto& child = disk[static_cast<size_t>(operation.child)];
    if (operation.kind == Operation::kMakeFolder) child.value = "/";
    if (operation.kind == Operation::kMakeFile) child.value = "=";
    if (operation.kind == Operation::kMakeLink) child.value = "-> " + operation.text;
    if (std::find(lost.begin(), lost.end(), i) != lost.end()) continue;
    auto& node = disk[static_cast<size_t>(operation.node)];
    switch (operation.kind) {
      case Operation::kMakeFolder:
      case Operation::kMakeFile:
      case Operation::kMakeLink:
        node.inside[operation.name] = operation.child;
        break;
      case Operation::kRename:
        node.inside.erase(operation.name);
        node.inside[operation.text] = operation.child;
        break;
      case Operation::kMoveIn:
        node.inside[operation.name] = operation.child;
        break;
      case Operation::kMoveOut:
      case Operation::kRemove:
        node.inside.erase(operation.name);
        break;
      case Operation::kWrite:
        node.value.resize(std::max(node.value.size(), 1 + operation.offset + operation.text.size()));
        node.value.replace(1 + operation.offset, operation.text.size(), operation.text);
        break;
      case Operation::kFsync:
        break;
    }
  }
  DiskContent content;
  const std::function<void(int, const std::string&)> list = [&](int node, const std::string& path) {
    for (const auto& [name, child] : disk[static_cast<size_t>(node)].inside) {
      content[path + name] = disk[static_cast<size_t>(child)].value;
      list(child, path + name + "/");
    }
  };
  list(0, "");
  return content;
}

void WriteDisk(const DiskContent& content, const std::string& folder) {
  for (const auto& [name, value] : content) {
    const std::string path = folder + "/" + name;
    if (value == "/") {
      std::filesystem::create_directory(path);
    } else if (value[0] == '=') {
      std::ofstream(path, std::ios::binary) << value.substr(1);
    } else {
      std::filesystem::create_symlink(value.substr(3), path);
    }
  }
}

}  // namespace switchyard
