#include "tests/backends/backend.h"

#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <stdexcept>

namespace switchyard::test {
namespace {

// A host, which lives as long as the process, and its settings.
struct Host {
  explicit Host(std::map<std::string, std::string> given) : settings(std::move(given)) {}
  static const char* Setting(void* context, const char* name) {
    const auto& own = static_cast<const Host*>(context)->settings;
    const auto found = own.find(name);
    return found != own.end() ? found->second.c_str() : std::getenv((std::string("SWITCHYARD_") + name).c_str());
  }
  static void Log(void*, int32_t, const char*) {}

  const std::map<std::string, std::string> settings;
  const sy_host host{SY_HEADER(sy_host), this, Log, Setting};
};

Tensor Make(sy_dtype dtype, std::vector<int64_t> dims, std::vector<double> values) {
  return {dtype, std::move(dims), std::move(values)};
}

template <typename T>
T Poison() {
  if constexpr (std::is_floating_point_v<T>) return std::numeric_limits<T>::quiet_NaN();
  return std::numeric_limits<T>::max();
}

// f(T{}) with the C++ type of `dtype`, whose values the tests can hold; half types are their bits.
template <typename F>
void WithType(sy_dtype dtype, F f) {
  switch (dtype) {
    case SY_F32:
      return f(float{});
    case SY_F64:
      return f(double{});
    case SY_I32:
      return f(int32_t{});
    case SY_I64:
      return f(int64_t{});
    case SY_U8:
      return f(uint8_t{});
    default:
      return f(uint16_t{});
  }
}

}  // namespace

Tensor F32(std::vector<int64_t> dims, std::vector<double> values) {
  return Make(SY_F32, std::move(dims), std::move(values));
}
Tensor F64(std::vector<int64_t> dims, std::vector<double> values) {
  return Make(SY_F64, std::move(dims), std::move(values));
}
Tensor I32(std::vector<int64_t> dims, std::vector<double> values) {
  return Make(SY_I32, std::move(dims), std::move(values));
}

int64_t Count(const std::vector<int64_t>& dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

sy_tensor Describe(const Tensor& tensor) {
  sy_tensor described{tensor.dtype, static_cast<int32_t>(tensor.dims.size()), {}, {}};
  int64_t stride = 1;
  for (size_t axis = tensor.dims.size(); axis-- > 0;) {
    described.dims[axis] = tensor.dims[axis];
    described.strides[axis] = tensor.strides.empty() ? stride : tensor.strides[axis];
    stride *= tensor.dims[axis];
  }
  return described;
}

std::vector<char> Encode(const Tensor& tensor) {
  const size_t count = tensor.values.empty() ? static_cast<size_t>(Count(tensor.dims)) : tensor.values.size();
  std::vector<char> bytes(count * sy_dtype_bits(tensor.dtype) / 8);
  WithType(tensor.dtype, [&](auto type) {
    using T = decltype(type);
    const double* const from = tensor.values.empty() ? nullptr : tensor.values.data();
    char* to = bytes.data();
    for (size_t i = 0; i < count; ++i, to += sizeof(T)) {
      const T value = from == nullptr ? Poison<T>() : static_cast<T>(from[i]);
      std::memcpy(to, &value, sizeof value);
    }
  });
  return bytes;
}

void Decode(const std::vector<char>& bytes, Tensor* tensor) {
  WithType(tensor->dtype, [&](auto type) {
    tensor->values.resize(bytes.size() / sizeof type);
    const char* from = bytes.data();
    for (double& value : tensor->values) {
      std::memcpy(&type, from, sizeof type);
      value = static_cast<double>(type);
      from += sizeof type;
    }
  });
}

Backend::Backend(const std::string& name, std::map<std::string, std::string> settings) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  auto path = program / ".." / "lib" / "switchyard" / "plugins" / ("switchyard_backend_" + name + ".so");
  if (name.find('/') != std::string::npos) path = name;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  static auto& hosts = *new std::vector<std::unique_ptr<Host>>;
  hosts.push_back(std::make_unique<Host>(std::move(settings)));
  const auto create = reinterpret_cast<sy_plugin_create_fn>(dlsym(library, "sy_plugin_create"));
  if (create(&hosts.back()->host, &plugin_, &error_) != SY_OK) throw std::runtime_error(error_.message);
  api_ = Interface<sy_device_v2>("device/2");
  kernels_ = Interface<sy_kernel_v2>("kernel/2");
  if (api_->open(instance(), 0, nullptr, &device_, &error_) != SY_OK) throw std::runtime_error(error_.message);
  const sy_stream_options stream_options{SY_HEADER(sy_stream_options)};
  if (api_->stream_create) api_->stream_create(device_, &stream_options, &stream_, &error_);
}

Backend::~Backend() {
  if (stream_) api_->stream_destroy(device_, stream_);
  api_->close(device_);
}

sy_buffer* Backend::Upload(const std::vector<char>& bytes) {
  sy_buffer* buffer = nullptr;
  if (api_->alloc(device_, bytes.size(), nullptr, &buffer, &error_) != SY_OK) throw std::runtime_error(error_.message);
  api_->copy(device_, stream_, {buffer, nullptr, 0}, {nullptr, const_cast<char*>(bytes.data()), 0}, bytes.size(),
             nullptr, &error_);
  api_->synchronize(device_, stream_, nullptr, &error_);
  return buffer;
}

std::vector<char> Backend::Download(sy_buffer* buffer, size_t bytes) {
  std::vector<char> host(bytes);
  api_->copy(device_, stream_, {nullptr, host.data(), 0}, {buffer, nullptr, 0}, bytes, nullptr, &error_);
  api_->synchronize(device_, stream_, nullptr, &error_);
  return host;
}

sy_prepare_request Backend::Request(const Op& op, const std::vector<sy_tensor>& inputs,
                                    const std::vector<sy_tensor>& outputs) const {
  sy_prepare_request request{SY_HEADER(sy_prepare_request)};
  request.op = op.name.c_str();
  request.op_version = 1;
  request.attributes = op.attributes.data();
  request.attributes_size = static_cast<uint32_t>(op.attributes.size());
  request.input_count = static_cast<uint32_t>(inputs.size());
  request.output_count = static_cast<uint32_t>(outputs.size());
  request.inputs = inputs.data();
  request.outputs = outputs.data();
  request.workspace_limit = 1 << 28;
  request.accumulate = op.accumulate.empty() ? nullptr : op.accumulate.data();
  request.tag = op.name.c_str();
  return request;
}

Result Backend::Run(const Op& op, const std::vector<Tensor>& inputs, std::vector<Tensor> outputs) {
  std::vector<sy_tensor> in, out;
  for (const Tensor& tensor : inputs) in.push_back(Describe(tensor));
  for (const Tensor& tensor : outputs) out.push_back(Describe(tensor));
  Result result;
  result.inplace.assign(outputs.size(), -1);
  result.info.header = SY_HEADER(sy_kernel_info);
  result.info.inplace = result.inplace.data();
  const sy_prepare_request request = Request(op, in, out);
  sy_kernel* kernel = nullptr;
  error_.message[0] = '\0';
  result.status = kernels_->prepare(device_, &request, &kernel, &result.info, &error_);
  result.message = error_.message;
  if (result.status != SY_OK) return result;

  std::vector<sy_buffer*> buffers;
  const auto place = [&](const std::vector<char>& bytes) {
    buffers.push_back(Upload(bytes));
    return sy_place{buffers.back(), nullptr, 0};
  };
  std::vector<sy_place> from, to;
  for (const Tensor& tensor : inputs) from.push_back(place(Encode(tensor)));
  for (const Tensor& tensor : outputs) to.push_back(place(Encode(tensor)));
  sy_binding binding{SY_HEADER(sy_binding), from.data(), to.data(), {}, {}, {}, {}};
  if (result.info.workspace_bytes)
    binding.workspace = place(std::vector<char>(result.info.workspace_bytes, '\xFF'));  // NaN
  if (result.info.persistent_bytes) binding.persistent = place(std::vector<char>(result.info.persistent_bytes));
  if (result.info.constant_bytes) {
    binding.constants = place(std::vector<char>(result.info.constant_bytes, '\xFF'));
    result.status = kernels_->write_constants(device_, kernel, stream_, binding.constants, &error_);
  }
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  if (result.status == SY_OK) result.status = kernels_->bind(device_, kernel, &binding, &bound, &launch, &error_);
  if (result.status == SY_OK) result.status = launch(bound, stream_, &error_);
  if (result.status == SY_OK) result.status = api_->synchronize(device_, stream_, nullptr, &error_);
  result.message = error_.message;
  for (size_t o = 0; result.status == SY_OK && o < outputs.size(); ++o) {
    Decode(Download(to[o].buffer, Encode(outputs[o]).size()), &outputs[o]);
  }
  result.outputs = std::move(outputs);
  if (bound) kernels_->unbind(device_, bound);
  kernels_->release(device_, kernel);
  for (sy_buffer* buffer : buffers) api_->free(device_, buffer);
  return result;
}

}  // namespace switchyard::test
