#include "core/train/save_meeting.h"

#include <algorithm>
#include <charconv>

#include "core/base/text.h"
#include "core/train/told_by_another.h"

namespace switchyard {
namespace {

constexpr int kNoLimitMs = 1 << 30;  // a wait ends with the run at the latest
constexpr char kDraft[] = "draft", kVerdict[] = "verdict";

std::string ReportOf(int rank) { return fmt::format("report/{}", rank); }

}  // namespace

std::string SaveMeeting::Key(const std::string& what) const { return fmt::format("save/{}/{}", number_, what); }

// "+value", or "-code message".
Status SaveMeeting::Put(const std::string& what, const Status& status, const std::string& value) {
  return rendezvous_.Put(Key(what), status.ok() ? "+" + value
                                                : fmt::format("-{} {}", static_cast<int>(status.code()),
                                                              Message(status).substr(0, size_t{1} << 16)));
}

StatusOr<std::string> SaveMeeting::Get(const std::string& what) {
  SY_ASSIGN_OR_RETURN(const std::string text, rendezvous_.Get(Key(what), kNoLimitMs));
  if (text.starts_with('+')) return text.substr(1);
  int code = 0;
  const size_t space = std::min(text.find(' '), text.size());
  if (!text.starts_with('-') || std::from_chars(text.data() + 1, text.data() + space, code).ec != std::errc() ||
      code <= 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated))
    return Internal("{}: expected an answer, found {}", Key(what), Printable(text));
  return Status(static_cast<absl::StatusCode>(code), text.substr(std::min(space + 1, text.size())));
}

Status SaveMeeting::Begin(const std::string& draft) {
  told_ = true;
  return Put(kDraft, OkStatus(), draft);
}

StatusOr<std::vector<TensorFileSummary>> SaveMeeting::Wait() {
  std::vector<TensorFileSummary> summaries;
  Status first;  // told only once all have reported, so that nobody writes any more
  for (const int writer : writers_) {
    if (writer == 0) continue;
    const auto report = Get(ReportOf(writer));
    if (!report.ok()) {
      const bool of_run = !rendezvous_.health().ok();
      first.Update(of_run ? report.status() : Annotate(report.status(), fmt::format("rank {}", writer)));
      if (of_run) break;
      continue;
    }
    TensorFileSummary summary;
    const char* const end = report->data() + report->size();
    const auto bytes = std::from_chars(report->data(), end, summary.bytes);
    if (bytes.ec != std::errc() || bytes.ptr == end ||
        std::from_chars(bytes.ptr + 1, end, summary.header_crc32).ec != std::errc())
      return Internal("rank {} reports {}", writer, Printable(*report));
    summaries.push_back(summary);
  }
  SY_RETURN_IF_ERROR(first);
  return summaries;
}

StatusOr<std::string> SaveMeeting::Draft() { return Get(kDraft); }

Status SaveMeeting::Report(const TensorFileSummary& summary) {
  told_ = true;
  return Put(ReportOf(rank_), OkStatus(), fmt::format("{} {}", summary.bytes, summary.header_crc32));
}

Status SaveMeeting::End(const Status& status) {
  const bool writes = std::find(writers_.begin(), writers_.end(), rank_) != writers_.end();
  if (rank_ == 0) {
    if (!told_) Put(kDraft, status).IgnoreError();  // a run that has failed has no use for it
    Put(kVerdict, status).IgnoreError();
    return status;
  }
  if (writes && !told_) Put(ReportOf(rank_), status).IgnoreError();
  const auto verdict = Get(kVerdict);
  if (!rendezvous_.health().ok()) return OkStatus();
  if (verdict.ok()) return status;
  // An error here may follow from another rank's; where there is none, it is another's.
  return status.ok() ? ToldByAnother(verdict.status()) : verdict.status();
}

}  // namespace switchyard
