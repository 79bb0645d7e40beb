#include "core/runtime/processes/pmix_bootstrap.h"

#include "core/base/environment.h"

namespace switchyard::pmix {
namespace {

bool LauncherOffers() { return Environment("PMIX_NAMESPACE").has_value() && Environment("PMIX_RANK").has_value(); }

}  // namespace
}  // namespace switchyard::pmix

#ifdef SWITCHYARD_PMIX_LIBRARY
#include <dlfcn.h>
#include <pmix.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace switchyard::pmix {
namespace {

// The functions of libpmix that are used; signatures as in pmix.h (https://pmix.github.io/standard).
struct Library {
  decltype(&PMIx_Init) init = nullptr;
  decltype(&PMIx_Finalize) finalize = nullptr;
  decltype(&PMIx_Put) put = nullptr;
  decltype(&PMIx_Commit) commit = nullptr;
  decltype(&PMIx_Get) get = nullptr;
  decltype(&PMIx_Error_string) error_string = nullptr;
  std::string problem;
};

Library Open() {
  Library library;
  // The name by which the system finds it, then where it was when this was built. Its components need its symbols.
  void* handle = nullptr;
  for (const char* name : {"libpmix.so.2", SWITCHYARD_PMIX_LIBRARY}) {
    if (handle == nullptr) handle = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (handle == nullptr && library.problem.empty()) library.problem = dlerror();
  }
  if (handle == nullptr) return library;
  library.problem.clear();
  const auto bind = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr) library.problem += fmt::format("libpmix has no {}; ", name);
  };
  bind("PMIx_Init", library.init);
  bind("PMIx_Finalize", library.finalize);
  bind("PMIx_Put", library.put);
  bind("PMIx_Commit", library.commit);
  bind("PMIx_Get", library.get);
  bind("PMIx_Error_string", library.error_string);
  return library;
}

const Library& Pmix() {
  static const Library library = Open();
  return library;
}

pmix_proc_t self;
std::atomic<bool> started{false};

Status Check(pmix_status_t status, const char* what) {
  if (status == PMIX_SUCCESS) return OkStatus();
  return Unavailable(
      "{}: {}; the launcher's PMIx service does not answer, set MASTER_ADDR and MASTER_PORT to go without", what,
      Pmix().error_string(status));
}

}  // namespace

bool Offered() { return LauncherOffers() && Pmix().problem.empty(); }

std::string WhyNotOffered() {
  return LauncherOffers() && !Pmix().problem.empty() ? fmt::format(" (it offers PMIx, but {})", Pmix().problem) : "";
}

Status Start() {
  if (started) return OkStatus();
  SY_RETURN_IF_ERROR(Check(Pmix().init(&self, nullptr, 0), "PMIx_Init"));
  started = true;
  std::atexit([] {
    if (started) Pmix().finalize(nullptr, 0);
  });
  return OkStatus();
}

Status Publish(const std::string& key, const std::string& value) {
  pmix_value_t entry{};
  entry.type = PMIX_STRING;
  entry.data.string = const_cast<char*>(value.c_str());
  SY_RETURN_IF_ERROR(Check(Pmix().put(PMIX_GLOBAL, key.c_str(), &entry), "PMIx_Put"));
  return Check(Pmix().commit(), "PMIx_Commit");
}

StatusOr<std::string> LookUp(const std::string& key, int rank, int timeout_ms) {
  pmix_proc_t peer = self;
  peer.rank = static_cast<pmix_rank_t>(rank);
  pmix_info_t limit{};
  std::strncpy(limit.key, PMIX_TIMEOUT, PMIX_MAX_KEYLEN);
  limit.value.type = PMIX_INT;
  limit.value.data.integer = (timeout_ms + 999) / 1000;
  pmix_value_t* value = nullptr;
  // The server of our own node answers "not found" at once until the peer has published it.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  pmix_status_t status = PMIX_ERR_NOT_FOUND;
  while ((status = Pmix().get(&peer, key.c_str(), &limit, 1, &value)) == PMIX_ERR_NOT_FOUND &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  SY_RETURN_IF_ERROR(Check(status, "PMIx_Get"));
  std::string text;
  if (value->type == PMIX_STRING) {
    text = value->data.string;
    std::free(value->data.string);
  }
  std::free(value);
  return text;
}

void Abandon() { started = false; }

}  // namespace switchyard::pmix

#else

namespace switchyard::pmix {

bool Offered() { return false; }
std::string WhyNotOffered() { return LauncherOffers() ? " (it offers PMIx, but this program was built without)" : ""; }
Status Start() { return Unimplemented("built without PMIx"); }
Status Publish(const std::string&, const std::string&) { return Unimplemented("built without PMIx"); }
StatusOr<std::string> LookUp(const std::string&, int, int) { return Unimplemented("built without PMIx"); }
void Abandon() {}

}  // namespace switchyard::pmix
#endif
