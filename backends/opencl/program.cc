#include "backends/opencl/program.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace switchyard {
namespace {

// A binary's file: this, the hash of what follows, the key, the binary.
constexpr char kMagic[] = "switchyard opencl 1\n";

std::string Hex(uint64_t value) { return Format("%016llx", static_cast<unsigned long long>(value)); }

const char* FindSource(const std::string& name) {
  for (const KernelSource& source : KernelSources()) {
    if (name == source.name) return source.text;
  }
  return nullptr;
}

}  // namespace

uint64_t HashText(const std::string& text, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325u + seed;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

std::string BinaryFolder(const char* setting, bool driver_keeps_kernels) {
  if (setting && *setting) return std::string(setting) == "off" ? "" : setting;
  if (driver_keeps_kernels) return "";
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache && *cache == '/') return std::string(cache) + "/switchyard/opencl";
  const char* home = std::getenv("HOME");
  return home && *home == '/' ? std::string(home) + "/.cache/switchyard/opencl" : "";
}

void ProgramCache::Open(cl_context context, cl_device_id device, std::string folder, std::string device_identity,
                        std::string options) {
  context_ = context;
  device_ = device;
  folder_ = std::move(folder);
  identity_ = std::move(device_identity);
  options_ = std::move(options);
}

sy_status ProgramCache::Get(const std::string& names, const std::string& options, cl_program* program,
                            sy_error* error) {
  std::istringstream list(names);
  std::string text;
  for (std::string name; list >> name;) {
    const char* source = FindSource(name);
    if (!source) return SY_FAIL(error, SY_INTERNAL, "no kernel source is called %s", name.c_str());
    text += source;
  }
  return GetText(text, options, program, error);
}

sy_status ProgramCache::GetText(const std::string& text, const std::string& options, cl_program* program,
                                sy_error* error) {
  const std::string all_options = options_ + " " + options;
  const std::lock_guard lock(mutex_);
  ProgramHandle& known = programs_[all_options + "\n" + text];
  if (!known) {
    const std::string whole = FindSource("common") + text;
    const std::string key = identity_ + "\n" + all_options + "\n" + Hex(HashText(whole, 1)) + Hex(HashText(whole, 2));
    const std::string path =
        folder_.empty() ? "" : folder_ + "/" + Hex(HashText(key, 1)) + Hex(HashText(key, 2)) + ".bin";
    if (path.empty() || !LoadBinary(path, key, all_options, &known)) {
      if (const sy_status status = Build(whole, all_options, &known, error); status != SY_OK) return status;
      if (!path.empty()) StoreBinary(path, key, known.get());
    }
  }
  *program = known.get();
  return SY_OK;
}

sy_status ProgramCache::Build(const std::string& text, const std::string& options, ProgramHandle* program,
                              sy_error* error) {
  const char* source = text.c_str();
  const size_t length = text.size();
  cl_int code;
  ProgramHandle made(clCreateProgramWithSource(context_, 1, &source, &length, &code));
  if (code != CL_SUCCESS) return Failed(error, code, "clCreateProgramWithSource");
  code = clBuildProgram(made.get(), 1, &device_, options.c_str(), nullptr, nullptr);
  if (code != CL_SUCCESS) {
    size_t bytes = 0;
    std::string log;
    if (clGetProgramBuildInfo(made.get(), device_, CL_PROGRAM_BUILD_LOG, 0, nullptr, &bytes) == CL_SUCCESS) {
      log.resize(bytes);
      if (clGetProgramBuildInfo(made.get(), device_, CL_PROGRAM_BUILD_LOG, bytes, log.data(), nullptr) != CL_SUCCESS) {
        log.clear();
      }
    }
    Failed(error, code, "clBuildProgram");
    return SY_FAIL(error, SY_INTERNAL, "clBuildProgram failed with %s: %s", CodeName(code).c_str(), log.c_str());
  }
  *program = std::move(made);
  return SY_OK;
}

bool ProgramCache::LoadBinary(const std::string& path, const std::string& key, const std::string& options,
                              ProgramHandle* program) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  const std::string head = kMagic, hash_of = content.size() > head.size() + 17 ? content.substr(head.size() + 17) : "";
  if (content.compare(0, head.size(), head) != 0 || hash_of.size() <= key.size() + 1 ||
      content.compare(head.size(), 16, Hex(HashText(hash_of, 3))) != 0 || hash_of.compare(0, key.size(), key) != 0) {
    return false;
  }
  const size_t length = hash_of.size() - key.size() - 1;
  const auto* binary = reinterpret_cast<const unsigned char*>(hash_of.data()) + key.size() + 1;
  cl_int code, loaded = CL_SUCCESS;
  ProgramHandle made(clCreateProgramWithBinary(context_, 1, &device_, &length, &binary, &loaded, &code));
  if (code != CL_SUCCESS || loaded != CL_SUCCESS ||
      clBuildProgram(made.get(), 1, &device_, options.c_str(), nullptr, nullptr) != CL_SUCCESS) {
    return false;
  }
  *program = std::move(made);
  return true;
}

// A cache that cannot be written (a full disk, a home that is read-only) costs time in the next run and nothing else.
void ProgramCache::StoreBinary(const std::string& path, const std::string& key, cl_program program) {
  size_t bytes = 0;
  if (clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, nullptr) != CL_SUCCESS || bytes == 0)
    return;
  std::string binary(bytes, '\0');
  auto* place = reinterpret_cast<unsigned char*>(binary.data());
  if (clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof place, &place, nullptr) != CL_SUCCESS) return;
  std::error_code ignored;
  std::filesystem::create_directories(folder_, ignored);
  const std::string body = key + "\n" + binary, temporary = path + "." + std::to_string(getpid());
  {
    std::ofstream file(temporary, std::ios::binary);
    file << kMagic << Hex(HashText(body, 3)) << '\n' << body;
    if (!file.flush()) {
      std::filesystem::remove(temporary, ignored);
      return;
    }
  }
  std::filesystem::rename(temporary, path, ignored);
  if (ignored) std::filesystem::remove(temporary, ignored);
}

}  // namespace switchyard
