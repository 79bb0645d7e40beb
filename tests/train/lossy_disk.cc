#include "tests/train/lossy_disk.h"

#include <fcntl.h>

#include <algorithm>
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
    const int descriptor = real.openat(folder, name, flags, mode);
    if (descriptor < 0) return descriptor;
    open_.erase(descriptor);
    int node = NodeOf(folder, name);
    if (node < 0 && (flags & O_CREAT) != 0) node = Make(folder, name, Operation::kMakeFile, "");
    if (node >= 0) open_[descriptor] = node;
    return descriptor;
  };
  calls_.write = [this, real](int descriptor, const void* data, size_t bytes) {
    const ssize_t written = real.write(descriptor, data, bytes);
    if (written > 0 && open_.contains(descriptor)) {
      const std::string text(static_cast<const char*>(data), static_cast<size_t>(written));
      operations_.push_back({Operation::kWrite, open_[descriptor], 0, "", text});
    }
    return written;
  };
  calls_.fsync = [this](int descriptor) {  // nothing that a test would have to wait for
    if (open_.contains(descriptor)) operations_.push_back({Operation::kFsync, open_[descriptor], 0, "", ""});
    return 0;
  };
  calls_.mkdirat = [this, real](int folder, const char* name, mode_t mode) {
    const int result = real.mkdirat(folder, name, mode);
    if (result == 0) Make(folder, name, Operation::kMakeFolder, "");
    return result;
  };
  calls_.symlinkat = [this, real](const char* target, int folder, const char* name) {
    const int result = real.symlinkat(target, folder, name);
    if (result == 0) Make(folder, name, Operation::kMakeLink, target);
    return result;
  };
  calls_.renameat = [this, real](int from_folder, const char* from, int to_folder, const char* to) {
    const int result = real.renameat(from_folder, from, to_folder, to);
    if (result == 0 && open_.contains(from_folder)) {
      EXPECT_EQ(from_folder, to_folder) << "a rename between folders would need two fsyncs";
      auto& inside = nodes_[static_cast<size_t>(open_[from_folder])].inside;
      const int child = inside.extract(from).mapped();
      inside[to] = child;
      operations_.push_back({Operation::kRename, open_[from_folder], child, from, to});
    }
    return result;
  };
  calls_.unlinkat = [this, real](int folder, const char* name, int flags) {
    const int result = real.unlinkat(folder, name, flags);
    if (result == 0 && open_.contains(folder)) {
      nodes_[static_cast<size_t>(open_[folder])].inside.erase(name);
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
    const auto& inside = nodes_[static_cast<size_t>(node)].inside;
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
  const std::string& above = nodes_[static_cast<size_t>(parent->second)].path;
  nodes_.push_back({above + (above.empty() ? "" : "/") + name, {}});
  nodes_[static_cast<size_t>(parent->second)].inside[name] = node;
  operations_.push_back({kind, parent->second, node, name, text});
  return node;
}

std::vector<int> RecordedDisk::Fsyncs() const {
  std::vector<int> fsyncs;
  for (int i = 0; i < calls(); ++i) {
    if (operations_[static_cast<size_t>(i)].kind == Operation::kFsync) fsyncs.push_back(i);
  }
  return fsyncs;
}

std::string RecordedDisk::Describe(int call) const {
  if (call >= calls()) return "the end";
  const Operation& operation = operations_[static_cast<size_t>(call)];
  constexpr const char* kNames[] = {"make the folder", "make", "link", "rename", "remove", "write", "fsync"};
  std::string path = nodes_[static_cast<size_t>(operation.node)].path;
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
      case Operation::kRemove:
        node.inside.erase(operation.name);
        break;
      case Operation::kWrite:
        node.value += operation.text;
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
