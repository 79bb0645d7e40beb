#include "core/runtime/plugins/trust.h"

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

namespace switchyard {
namespace {

std::string UserName(uid_t uid) {
  passwd entry{}, *found = nullptr;
  std::vector<char> text(4096);
  if (getpwuid_r(uid, &entry, text.data(), text.size(), &found) != 0 || found == nullptr) return std::to_string(uid);
  return found->pw_name;
}

// The "user private groups" of many distributions: a group with the user's name and nobody else in it.
bool IsPrivateGroupOfUser(gid_t gid) {
  group entry{}, *found = nullptr;
  std::vector<char> text(16384);
  if (getgrgid_r(gid, &entry, text.data(), text.size(), &found) != 0 || found == nullptr) return false;
  const std::string user = UserName(geteuid());
  if (user != found->gr_name) return false;
  for (char** member = found->gr_mem; *member != nullptr; ++member) {
    if (user != *member) return false;
  }
  return true;
}

}  // namespace

Status CheckTrusted(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return NotFound("{}: {}", path, std::strerror(errno));
  if (info.st_uid != 0 && info.st_uid != geteuid()) {
    return FailedPrecondition("{} belongs to user {}; expected root or {}; make it yours with: chown {} {}", path,
                              UserName(info.st_uid), UserName(geteuid()), UserName(geteuid()), path);
  }
  const bool group = (info.st_mode & S_IWGRP) && !IsPrivateGroupOfUser(info.st_gid);
  if (group || (info.st_mode & S_IWOTH)) {
    return FailedPrecondition("{} can be written by other users (mode {:04o}); mend it with: chmod go-w {}", path,
                              info.st_mode & 07777, path);
  }
  return OkStatus();
}

}  // namespace switchyard
