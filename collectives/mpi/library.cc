#include "collectives/mpi/library.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "core/abi/boundary.h"

namespace mpi {
namespace {

std::atomic<int> start_code{-1};  // of MPI_Init_thread; -1: not finished
std::atomic<int> thread_level{MPI_THREAD_MULTIPLE};  // that the library offers, once start_code is there
std::atomic<bool> abandoned{false};
std::atomic<bool> quit{false};
std::shared_mutex& Inside() {  // outlives whoever calls at the end of the process
  static auto& mutex = *new std::shared_mutex;
  return mutex;
}

void FinishAtExit() {
  int initialized = 0, finalized = 0;
  if (abandoned || start_code != MPI_SUCCESS) return;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized && !finalized) MPI_Finalize();
}

}  // namespace

sy_status CheckMpi(sy_error* error, int code, const char* what, std::source_location where) {
  if (code == MPI_SUCCESS) return SY_OK;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  switchyard::Refuse(error, SY_INTERNAL, switchyard::Format("%s: %s", what, text), where);
  if (error != nullptr && SY_HAS(sy_error, error, native_code)) error->native_code = code;
  return SY_INTERNAL;
}

sy_status CheckLauncher(int size, sy_error* error) {
  if (size == 1) return SY_OK;
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_ID"}) {
    if (getenv(variable) != nullptr) return SY_OK;
  }
  return SY_FAIL(error, SY_UNSUPPORTED,
                 "collective mpi needs mpirun, which did not start this process; use --collective=shm on one node, "
                 "or start the ranks with mpirun");
}

const char* LibraryVersion() {
  static const auto& version = *new std::string([] {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(text, &length);
    return std::string(text, strcspn(text, "\r\n"));
  }());
  return version.c_str();
}

void StartLibrary() {
  static std::once_flag once;
  std::call_once(once, [] {
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized) {
      int provided = 0;
      MPI_Query_thread(&provided);
      thread_level = provided;
      start_code = MPI_SUCCESS;
      return;
    }
    std::thread([] {
      int provided = 0;
      const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
      if (code == MPI_SUCCESS) {
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        atexit(FinishAtExit);
      }
      if (code == MPI_SUCCESS) thread_level = provided;
      start_code = code;
    }).detach();
  });
}

sy_status LibraryReady(sy_error* error) {
  const int code = start_code;
  if (code == -1) return SY_IN_PROGRESS;
  if (const sy_status started = CheckMpi(error, code, "MPI_Init_thread"); started != SY_OK) return started;
  if (thread_level == MPI_THREAD_MULTIPLE) return SY_OK;
  return SY_FAIL(
      error, SY_UNSUPPORTED,
      "MPI offers thread level %d, expected %d (MPI_THREAD_MULTIPLE), since several threads call it; a program "
      "that starts MPI itself asks for that level, else use --collective=shm or tcp",
      thread_level.load(), MPI_THREAD_MULTIPLE);
}

void AbandonLibrary() { abandoned = true; }

InLibrary::InLibrary() : lock_(Inside()) {
  if (quit) lock_.unlock();
}

void QuitLibrary() {
  quit = abandoned = true;
  const std::lock_guard everybody_has_left(Inside());
}

sy_status RunAbortable(const std::atomic<bool>& aborted, std::function<sy_status(sy_error*)> body, sy_error* error) {
  struct Outcome {
    std::atomic<bool> finished{false};
    sy_status status = SY_OK;
    sy_error error{SY_HEADER(sy_error)};
  };
  if (quit) return SY_FAIL(error, SY_ABORTED, "MPI was given up in this process");
  const auto outcome = std::make_shared<Outcome>();
  std::thread([outcome, body = std::move(body)] {
    outcome->status = body(&outcome->error);
    outcome->finished = true;
  }).detach();
  while (!outcome->finished) {
    if (aborted) return SY_FAIL(error, SY_ABORTED, "aborted");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (outcome->status != SY_OK && error != nullptr) *error = outcome->error;
  return outcome->status;
}

}  // namespace mpi
