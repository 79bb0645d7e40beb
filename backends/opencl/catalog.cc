#include "backends/opencl/catalog.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "backends/opencl/program.h"

namespace switchyard {
namespace {

template <typename T>
cl_int Read(cl_device_id device, cl_device_info what, T* value) {
  return clGetDeviceInfo(device, what, sizeof(T), value, nullptr);
}

// A text that `get` (clGetDeviceInfo, clGetPlatformInfo) answers.
template <typename Object, typename Get>
cl_int ReadText(Get get, Object object, cl_uint what, std::string* text) {
  size_t bytes = 0;
  if (const cl_int code = get(object, what, 0, nullptr, &bytes); code != CL_SUCCESS) return code;
  text->resize(bytes);
  const cl_int code = get(object, what, bytes, text->data(), nullptr);
  while (!text->empty() && (text->back() == '\0' || text->back() == ' ')) text->pop_back();
  return code;
}
cl_int ReadText(cl_device_id device, cl_device_info what, std::string* text) {
  return ReadText(clGetDeviceInfo, device, what, text);
}

// "Portable Computing Language, OpenCL 3.0 PoCL 3.1, driver 3.1": what does not answer is left out.
std::string LibrariesOf(cl_platform_id platform, cl_device_id device) {
  std::string name, version, driver;
  ReadText(clGetPlatformInfo, platform, CL_PLATFORM_NAME, &name);
  ReadText(clGetPlatformInfo, platform, CL_PLATFORM_VERSION, &version);
  ReadText(device, CL_DRIVER_VERSION, &driver);
  std::string text = name;
  if (!version.empty()) text += (text.empty() ? "" : ", ") + version;
  if (!driver.empty()) text += (text.empty() ? "driver " : ", driver ") + driver;
  for (char& c : text)  // one line of ASCII, whatever a driver writes
    if (c < ' ' || c > '~') c = ' ';
  return text;
}

int Rank(cl_device_type type) { return type & CL_DEVICE_TYPE_GPU ? 0 : type & CL_DEVICE_TYPE_ACCELERATOR ? 1 : 2; }

// Why a device cannot be used, or "".
std::string Defect(cl_device_id device, cl_device_type type) {
  cl_bool available = CL_FALSE, compiler = CL_FALSE, little_endian = CL_FALSE;
  std::string name, version;
  if (ReadText(device, CL_DEVICE_NAME, &name) != CL_SUCCESS ||
      ReadText(device, CL_DEVICE_VERSION, &version) != CL_SUCCESS ||
      Read(device, CL_DEVICE_AVAILABLE, &available) != CL_SUCCESS ||
      Read(device, CL_DEVICE_COMPILER_AVAILABLE, &compiler) != CL_SUCCESS ||
      Read(device, CL_DEVICE_ENDIAN_LITTLE, &little_endian) != CL_SUCCESS) {
    return "a device does not answer clGetDeviceInfo";
  }
  if (type & CL_DEVICE_TYPE_CUSTOM) return name + " is a custom device";
  if (!available) return name + " is not available";
  if (!compiler) return name + " has no compiler";
  if (!little_endian) return name + " is big-endian";
  int major = 0, minor = 0;  // "OpenCL 1.2 …"
  if (std::sscanf(version.c_str(), "OpenCL %d.%d", &major, &minor) != 2 || major * 10 + minor < 12) {
    return name + " offers " + version + ", 1.2 is needed";
  }
  return "";
}

Catalog Look() {
  Catalog catalog;
  const auto complain = [&](const std::string& why) {
    catalog.why_none += (catalog.why_none.empty() ? "" : "; ") + why;
  };
  cl_uint platform_count = 0;
  cl_int code = clGetPlatformIDs(0, nullptr, &platform_count);
  std::vector<cl_platform_id> platforms(platform_count);
  if (code == CL_SUCCESS && platform_count > 0) code = clGetPlatformIDs(platform_count, platforms.data(), nullptr);
  if (code != CL_SUCCESS || platforms.empty()) {
    complain("no OpenCL platform: clGetPlatformIDs answers " + CodeName(code) +
             "; install the OpenCL driver of the device (/etc/OpenCL/vendors lists those installed)");
    return catalog;
  }
  for (const cl_platform_id platform : platforms) {
    cl_uint count = 0;
    code = clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count);
    std::vector<cl_device_id> devices(count);
    if (code == CL_SUCCESS && count > 0) {
      code = clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, devices.data(), nullptr);
    }
    if (code != CL_SUCCESS) {
      complain("a platform without devices: clGetDeviceIDs answers " + CodeName(code));
      continue;
    }
    for (const cl_device_id device : devices) {
      cl_device_type type = 0;
      std::string defect = "a device has no type";
      if (Read(device, CL_DEVICE_TYPE, &type) == CL_SUCCESS) defect = Defect(device, type);
      if (defect.empty()) {
        catalog.entries.push_back({platform, device, type, LibrariesOf(platform, device)});
      } else {
        complain(defect);
      }
    }
  }
  std::stable_sort(catalog.entries.begin(), catalog.entries.end(),
                   [](const auto& a, const auto& b) { return Rank(a.type) < Rank(b.type); });
  return catalog;
}

}  // namespace

const Catalog& Devices() {
  static const auto* const catalog = new Catalog(Look());
  return *catalog;
}

sy_status CheckIndex(int32_t index, sy_error* error) {
  const Catalog& catalog = Devices();
  if (index >= 0 && static_cast<size_t>(index) < catalog.entries.size()) return SY_OK;
  return Refuse(error, SY_INVALID,
                Text("no device ", index, ": there are ", catalog.entries.size(),
                     catalog.why_none.empty() ? "" : "; " + catalog.why_none));
}

sy_status ReadTraits(const CatalogEntry& entry, Traits* traits, sy_error* error) {
  const cl_device_id device = entry.device;
  cl_uint units = 0, width = 0, align_bits = 0;
  cl_ulong memory = 0, largest = 0;
  size_t work_group = 0;
  std::string driver, version;
  SY_CL(error, ReadText, device, CL_DEVICE_NAME, &traits->name);
  SY_CL(error, ReadText, device, CL_DEVICE_VERSION, &version);
  SY_CL(error, ReadText, device, CL_DRIVER_VERSION, &driver);
  SY_CL(error, Read, device, CL_DEVICE_MAX_COMPUTE_UNITS, &units);
  SY_CL(error, Read, device, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, &width);
  SY_CL(error, Read, device, CL_DEVICE_MAX_WORK_GROUP_SIZE, &work_group);
  SY_CL(error, Read, device, CL_DEVICE_GLOBAL_MEM_SIZE, &memory);
  SY_CL(error, Read, device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, &largest);
  SY_CL(error, Read, device, CL_DEVICE_MEM_BASE_ADDR_ALIGN, &align_bits);
  size_t bytes = 0;
  SY_CL(error, clGetDeviceInfo, device, CL_DEVICE_PARTITION_PROPERTIES, 0, nullptr, &bytes);
  std::vector<cl_device_partition_property> partitions(bytes / sizeof(cl_device_partition_property));
  SY_CL(error, clGetDeviceInfo, device, CL_DEVICE_PARTITION_PROPERTIES, bytes, partitions.data(), nullptr);

  traits->version = version + ", driver " + driver;
  traits->keeps_kernels = version.find("PoCL") != std::string::npos;
  traits->computes_on_host = entry.type & CL_DEVICE_TYPE_CPU;
  traits->compute_units = std::max(units, 1u);
  traits->vector_width = std::bit_floor(std::clamp(width, 1u, 16u));
  traits->max_work_group = std::max<uint64_t>(work_group, 1);
  traits->memory_bytes = memory;
  traits->largest_allocation = std::min(largest, memory);
  traits->alignment = std::bit_ceil(std::max(align_bits / 8, 128u));
  traits->splits_by_counts =
      std::find(partitions.begin(), partitions.end(), CL_DEVICE_PARTITION_BY_COUNTS) != partitions.end();
  return SY_OK;
}

void FillUuid(int32_t index, const Traits& traits, uint8_t uuid[16]) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const std::string identity = Text(host, '\n', traits.name, '\n', traits.version, '\n', index);
  const uint64_t words[] = {HashText(identity, 1), HashText(identity, 2)};
  std::memcpy(uuid, words, sizeof words);
}

}  // namespace switchyard
