#include "core/runtime/pmix_bootstrap.h"

#include "core/base/environment.h"

#ifdef SWITCHYARD_PMIX
#include <pmix.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace switchyard::pmix {
namespace {

pmix_proc_t self;
std::atomic<bool> started{false};

Status Check(pmix_status_t status, const char* what) {
  if (status == PMIX_SUCCESS) return OkStatus();
  return Unavailable(
      "{}: {}; the launcher's PMIx service does not answer, set MASTER_ADDR and MASTER_PORT to go without", what,
      PMIx_Error_string(status));
}

}  // namespace

bool Offered() { return Environment("PMIX_NAMESPACE").has_value() && Environment("PMIX_RANK").has_value(); }

Status Start() {
  if (started) return OkStatus();
  SY_RETURN_IF_ERROR(Check(PMIx_Init(&self, nullptr, 0), "PMIx_Init"));
  started = true;
  std::atexit([] {
    if (started) PMIx_Finalize(nullptr, 0);
  });
  return OkStatus();
}

Status Publish(const std::string& key, const std::string& value) {
  pmix_value_t entry;
  PMIX_VALUE_CONSTRUCT(&entry);
  entry.type = PMIX_STRING;
  entry.data.string = const_cast<char*>(value.c_str());
  SY_RETURN_IF_ERROR(Check(PMIx_Put(PMIX_GLOBAL, key.c_str(), &entry), "PMIx_Put"));
  return Check(PMIx_Commit(), "PMIx_Commit");
}

StatusOr<std::string> LookUp(const std::string& key, int rank, int timeout_ms) {
  pmix_proc_t peer;
  PMIX_PROC_LOAD(&peer, self.nspace, static_cast<pmix_rank_t>(rank));
  pmix_info_t limit;
  int seconds = (timeout_ms + 999) / 1000;
  PMIX_INFO_CONSTRUCT(&limit);
  PMIX_INFO_LOAD(&limit, PMIX_TIMEOUT, &seconds, PMIX_INT);
  pmix_value_t* value = nullptr;
  // The server of our own node answers "not found" at once until the peer has published it.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  pmix_status_t status = PMIX_ERR_NOT_FOUND;
  while ((status = PMIx_Get(&peer, key.c_str(), &limit, 1, &value)) == PMIX_ERR_NOT_FOUND &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  PMIX_INFO_DESTRUCT(&limit);
  SY_RETURN_IF_ERROR(Check(status, "PMIx_Get"));
  std::string text = value->type == PMIX_STRING ? value->data.string : "";
  PMIX_VALUE_RELEASE(value);
  return text;
}

void Abandon() { started = false; }

}  // namespace switchyard::pmix

#else

namespace switchyard::pmix {

bool Offered() { return false; }
Status Start() { return Unimplemented("built without PMIx"); }
Status Publish(const std::string&, const std::string&) { return Unimplemented("built without PMIx"); }
StatusOr<std::string> LookUp(const std::string&, int, int) { return Unimplemented("built without PMIx"); }
void Abandon() {}

}  // namespace switchyard::pmix
#endif
