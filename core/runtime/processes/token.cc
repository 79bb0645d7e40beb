#include "core/runtime/processes/token.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/base/environment.h"
#include "core/base/secret.h"

namespace switchyard {
namespace {

constexpr size_t kShortest = 16;      // characters
constexpr size_t kLongest = 4 << 10;  // of a file, bytes

constexpr char kHowTo[] =
    "make one with `(umask 077; head -c 32 /dev/urandom | base64 > ~/.switchyard_token)` and bring that file to every "
    "node, or set SWITCHYARD_TOKEN to the same secret everywhere";

StatusOr<std::string> Checked(const std::string& text, const std::string& from) {
  const size_t first = text.find_first_not_of(" \t\r\n"), last = text.find_last_not_of(" \t\r\n");
  const std::string token = first == std::string::npos ? "" : text.substr(first, last - first + 1);
  if (token.size() >= kShortest) return token;
  return InvalidArgument("{}: a token of {} characters can be guessed, expected at least {}; {}", from, token.size(),
                         kShortest, kHowTo);
}

// NotFound where there is no such file.
StatusOr<std::string> ReadToken(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0 && errno == ENOENT) return NotFound("{}: no such file; {}", path, kHowTo);
  if (file < 0) return FailedPrecondition("{}: cannot read the token: {}", path, std::strerror(errno));
  struct stat info {};
  std::string text(kLongest, '\0');
  ssize_t bytes = -1;
  const bool known = fstat(file, &info) == 0 && S_ISREG(info.st_mode);
  const bool own = known && (info.st_uid == geteuid() || info.st_uid == 0) && (info.st_mode & 077) == 0;
  if (own) bytes = read(file, text.data(), text.size());
  close(file);
  if (!known) return FailedPrecondition("{}: expected a regular file with a token", path);
  if (!own) return FailedPrecondition("{}: others may read this token; make it yours alone: chmod 600 {}", path, path);
  text.resize(static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
  return Checked(text, path);
}

// The user's own token on this host. Processes that make it at once end up with one and the same.
StatusOr<std::string> TokenOfThisUser() {
  const std::string folder = UserCacheFolder(), path = folder + "/token";
  if (folder.empty())
    return FailedPrecondition("without a home folder there is no place for a token; set SWITCHYARD_TOKEN to a secret");
  if (const auto found = ReadToken(path); !absl::IsNotFound(found.status())) return found;
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  SY_ASSIGN_OR_RETURN(const std::string mark, RandomToken());
  SY_ASSIGN_OR_RETURN(std::string token, RandomToken());
  const std::string draft = path + "." + mark;
  token += "\n";
  const int file = open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written = file >= 0 && write(file, token.data(), token.size()) == static_cast<ssize_t>(token.size());
  const bool made = written && (link(draft.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const int code = errno;
  if (file >= 0) close(file);
  unlink(draft.c_str());
  if (!made)
    return FailedPrecondition("cannot make {}: {}; set SWITCHYARD_TOKEN to a secret instead", path,
                              std::strerror(code));
  return ReadToken(path);
}

}  // namespace

StatusOr<std::string> RandomToken() {
  SY_ASSIGN_OR_RETURN(const std::string bytes, RandomBytes(16));
  return Hexadecimal(bytes);
}

StatusOr<std::optional<std::string>> GivenToken(const std::optional<std::string>& file) {
  if (file && file->empty()) return InvalidArgument("the name of the file with the token is empty; {}", kHowTo);
  const auto word = Environment("SWITCHYARD_TOKEN");
  const auto named = file ? file : Environment("SWITCHYARD_TOKEN_FILE");
  const auto home = Environment("HOME");
  if (!file && word) {
    SY_ASSIGN_OR_RETURN(std::string token, Checked(*word, "SWITCHYARD_TOKEN"));
    return token;
  }
  if (!named && !home) return std::nullopt;
  auto token = ReadToken(named ? *named : *home + "/.switchyard_token");
  if (token.ok()) return *std::move(token);
  if (!named && absl::IsNotFound(token.status())) return std::nullopt;
  return token.status();
}

StatusOr<std::string> FindToken(bool loopback, const std::optional<std::string>& file) {
  SY_ASSIGN_OR_RETURN(auto given, GivenToken(file));
  if (given) return *std::move(given);
  if (loopback) return TokenOfThisUser();
  return FailedPrecondition("a run on several nodes needs a token, a secret that keeps strangers out of it; {}",
                            kHowTo);
}

}  // namespace switchyard
