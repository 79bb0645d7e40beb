#include "core/train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <system_error>

#include "core/base/logging.h"
#include "core/train/checkpoint_files.h"
#include "core/train/file_calls.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr char kAbandoned[] = "abandoned";

// What `step-00000120-2` says: step 120, second version.
struct CheckpointName {
  int64_t step = 0;
  int64_t version = 1;
  friend auto operator<=>(const CheckpointName&, const CheckpointName&) = default;
  std::string Text() const {
    return version == 1 ? fmt::format("step-{:08}", step) : fmt::format("step-{:08}-{}", step, version);
  }
};

std::optional<CheckpointName> ParseName(const std::string& text) {
  constexpr char kPrefix[] = "step-";
  if (text.compare(0, sizeof kPrefix - 1, kPrefix) != 0) return std::nullopt;
  CheckpointName name;
  const char* end = text.data() + text.size();
  auto parsed = std::from_chars(text.data() + sizeof kPrefix - 1, end, name.step);
  if (parsed.ec != std::errc()) return std::nullopt;
  if (parsed.ptr != end) {
    if (*parsed.ptr != '-') return std::nullopt;
    parsed = std::from_chars(parsed.ptr + 1, end, name.version);
  }
  if (parsed.ec != std::errc() || parsed.ptr != end || name.Text() != text) return std::nullopt;
  return name;
}

std::string TemporaryName(const CheckpointName& name) { return "." + name.Text() + ".tmp"; }
std::string RemovedName(const CheckpointName& name) { return "." + name.Text() + ".removed"; }

// The checkpoint whose temporary or removed name this is.
bool IsLeftover(const std::string& name) {
  const size_t dot = name.rfind('.');
  if (name.empty() || name[0] != '.' || dot == 0) return false;
  const auto parsed = ParseName(name.substr(1, dot - 1));
  return parsed && (name == TemporaryName(*parsed) || name == RemovedName(*parsed));
}

// Removes what earlier saves that were cut short left behind. What cannot be removed is in nobody's way.
Status RemoveLeftovers(const Folder& root) {
  SY_ASSIGN_OR_RETURN(const std::vector<std::string> names, root.Names());
  for (const std::string& name : names) {
    if (!IsLeftover(name)) continue;
    const Status status = root.Remove(name);
    if (!status.ok()) LogWarning("what an earlier save left behind stays: {}", Message(status));
  }
  return OkStatus();
}

// The checkpoint beside it that a link names.
std::string LinkTarget(const Folder& root, const std::string& link) {
  std::error_code error;
  const fs::path target = fs::read_symlink(root.PathOf(link), error);
  return error || target.parent_path().filename() == kAbandoned ? "" : target.filename().string();
}

// Of the checkpoints up to `newest` removes all but the last `keep` and those that a link names.
Status Prune(const Folder& root, const CheckpointName& newest, int keep) {
  if (keep <= 0) return OkStatus();
  SY_ASSIGN_OR_RETURN(const std::vector<std::string> names, root.Names());
  std::vector<CheckpointName> checkpoints;
  for (const std::string& name : names) {
    const auto parsed = ParseName(name);
    if (parsed && *parsed <= newest) checkpoints.push_back(*parsed);
  }
  std::sort(checkpoints.rbegin(), checkpoints.rend());
  const std::string latest = LinkTarget(root, "latest"), best = LinkTarget(root, "best");
  std::vector<std::string> removed;
  for (size_t i = static_cast<size_t>(keep); i < checkpoints.size(); ++i) {
    const std::string name = checkpoints[i].Text();
    if (name == latest || name == best || root.Has(RemovedName(checkpoints[i]))) continue;
    removed.push_back(RemovedName(checkpoints[i]));
    SY_RETURN_IF_ERROR(root.Rename(name, removed.back()));
  }
  if (removed.empty()) return OkStatus();
  SY_RETURN_IF_ERROR(root.Sync());  // so that, also after a crash, none is seen half removed under its own name
  for (const std::string& name : removed) SY_RETURN_IF_ERROR(root.Remove(name));
  return OkStatus();
}

// "; another checkpoint beside it: …" of the newest one in the run folder that `path` stands for, or that a checkpoint
// lies in, but itself; "" where there is none.
std::string OthersBeside(const std::string& path) {
  fs::path given(path);
  if (!given.has_filename()) given = given.parent_path();
  std::error_code error;
  const fs::path itself =
      fs::canonical(fs::exists(given / kCheckpointRecord, error) ? given : given / "checkpoints" / "latest", error);
  std::optional<CheckpointName> newest;
  fs::path place;
  for (const fs::path& folder : {given.parent_path(), given / "checkpoints", given / "run" / "checkpoints"}) {
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      const fs::path& other = entry->path();
      const auto name = ParseName(other.filename().string());
      std::error_code ignored;
      if (!name || !fs::exists(other / kCheckpointRecord, ignored)) continue;
      if (fs::canonical(other, ignored) == itself || (newest && *name <= *newest)) continue;
      newest = name;
      place = other;
    }
  }
  return newest ? "; another checkpoint beside it: " + place.string() : "";
}

}  // namespace

StatusOr<std::string> SaveCheckpoint(const std::string& run_folder, const CheckpointContents& contents,
                                     const SaveOptions& options) {
  if (!contents.record.is_object()) {
    return InvalidArgument("a checkpoint's record must be a JSON object, found {}", contents.record.type_name());
  }
  if (contents.step < 0) return InvalidArgument("a checkpoint's step must be 0 or more, found {}", contents.step);
  SY_ASSIGN_OR_RETURN(const Folder run, Folder::Make(run_folder));
  SY_ASSIGN_OR_RETURN(const Folder root, run.MakeInside("checkpoints"));
  SY_RETURN_IF_ERROR(RemoveLeftovers(root));

  CheckpointName name{contents.step, 1};
  while (root.Has(name.Text()) || root.Has(TemporaryName(name))) ++name.version;
  const std::string folder = root.PathOf(name.Text()), temporary = TemporaryName(name);

  Status status = WriteCheckpointFiles(root, temporary, contents);
  if (status.ok()) status = root.Rename(temporary, name.Text());
  if (!status.ok()) {
    root.Remove(temporary).IgnoreError();  // the first error is the one to tell
    return Annotate(status, fmt::format("saving {}", folder));
  }
  SY_RETURN_IF_ERROR(root.Sync());
  const Status logged = options.sync_log ? options.sync_log() : OkStatus();
  // A run that goes on from `latest` takes the best metric from its record, and links no other best until that is
  // beaten: `best` must turn before.
  if (options.best) {
    SY_RETURN_IF_ERROR(root.ReplaceLink(name.Text(), "best"));
    SY_RETURN_IF_ERROR(root.Sync());
  }
  SY_RETURN_IF_ERROR(root.ReplaceLink(name.Text(), "latest"));
  SY_RETURN_IF_ERROR(root.Sync());
  SY_RETURN_IF_ERROR(Prune(root, name, options.keep));
  SY_RETURN_IF_ERROR(logged);
  return folder;
}

Status SetLaterCheckpointsAside(const std::string& folder) {
  const fs::path given(folder);
  const auto resumed = ParseName(given.filename().string());
  if (!resumed) return InvalidArgument("{}: expected a checkpoint of a run, checkpoints/step-…", folder);
  SY_ASSIGN_OR_RETURN(const Folder root, Folder::Open(given.parent_path().string()));
  SY_ASSIGN_OR_RETURN(const std::vector<std::string> names, root.Names());
  std::vector<CheckpointName> later;
  for (const std::string& name : names) {
    const auto parsed = ParseName(name);
    if (parsed && *parsed > *resumed) later.push_back(*parsed);
  }
  if (later.empty()) return OkStatus();
  SY_ASSIGN_OR_RETURN(const Folder aside,
                      root.Has(kAbandoned) ? root.OpenInside(kAbandoned) : root.CreateInside(kAbandoned));
  SY_RETURN_IF_ERROR(root.ReplaceLink(resumed->Text(), "latest"));
  const auto best = ParseName(LinkTarget(root, "best"));
  const bool best_moves = best && *best > *resumed;
  if (best_moves) SY_RETURN_IF_ERROR(root.ReplaceLink(resumed->Text(), "best"));  // never a link to nothing
  SY_RETURN_IF_ERROR(root.Sync());  // the links, and the folder to move to
  std::string best_aside;
  for (const CheckpointName& from : later) {
    CheckpointName to{from.step, 1};
    while (aside.Has(to.Text())) ++to.version;
    SY_RETURN_IF_ERROR(root.MoveInto(from.Text(), aside, to.Text()));
    if (best_moves && from == *best) best_aside = to.Text();
  }
  SY_RETURN_IF_ERROR(aside.Sync());
  if (!best_aside.empty()) SY_RETURN_IF_ERROR(root.ReplaceLink(std::string(kAbandoned) + "/" + best_aside, "best"));
  return root.Sync();
}

StatusOr<std::string> ResolveCheckpoint(const std::string& path) {
  fs::path given(path);
  if (!given.has_filename()) given = given.parent_path();  // "run/" is "run"
  std::vector<fs::path> candidates = {given, given / "latest", given / "checkpoints" / "latest",
                                      given / "run" / "checkpoints" / "latest"};
  if (given.filename() == "latest" || given.filename() == "best") {
    candidates.push_back(given.parent_path() / "checkpoints" / given.filename());
  }
  std::error_code error;
  for (const fs::path& candidate : candidates) {
    if (!fs::exists(candidate / kCheckpointRecord, error)) continue;
    const fs::path folder = fs::canonical(candidate, error);
    if (!error) return folder.string();
  }
  return NotFound(
      "no checkpoint at {}: expected a folder with state.json, a run folder with checkpoints/latest, or <run>/best{}",
      path, OthersBeside(path));
}

Status WithOthersBeside(const Status& error, const std::string& path) {
  if (!absl::IsDataLoss(error) && !absl::IsNotFound(error)) return error;
  const std::string others = OthersBeside(path);
  if (Message(error).ends_with(others)) return error;
  return Status(error.code(), Message(error) + others);
}

StatusOr<LoadedCheckpoint> LoadCheckpoint(const std::string& path) {
  SY_ASSIGN_OR_RETURN(const std::string folder, ResolveCheckpoint(path));
  auto checkpoint = ReadCheckpointFiles(folder);
  if (!checkpoint.ok()) return WithOthersBeside(checkpoint.status(), folder);
  return checkpoint;
}

}  // namespace switchyard
