// A backend plugin as the tests of this folder see it: loaded straight through its one symbol, without the core, so
// that a failure here is the plugin's. Run does everything for one op: allocate, upload, prepare, bind, launch,
// download. One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/abi/device.h"
#include "core/abi/kernel.h"
#include "core/abi/ops.h"
#include "core/abi/plugin.h"

namespace switchyard::test {

// A tensor in host memory. Values of bf16 and f16 are their bits. `strides` (elements) only where they are not
// contiguous.
struct Tensor {
  sy_dtype dtype = SY_F32;
  std::vector<int64_t> dims;
  std::vector<double> values;
  std::vector<int64_t> strides{};
};
Tensor F32(std::vector<int64_t> dims, std::vector<double> values = {});
Tensor F64(std::vector<int64_t> dims, std::vector<double> values = {});
Tensor I32(std::vector<int64_t> dims, std::vector<double> values = {});
sy_tensor Describe(const Tensor& tensor);
int64_t Count(const std::vector<int64_t>& dims);

// An op with its attributes; `forward` and `accumulate` as in sy_prepare_request.
struct Op {
  explicit Op(std::string op_name) : name(std::move(op_name)) {}
  template <typename A>
  Op(std::string op_name, const A& given) : name(std::move(op_name)) {
    const auto* bytes = reinterpret_cast<const char*>(&given);
    attributes.assign(bytes, bytes + sizeof(A));
  }
  std::string name;
  std::vector<char> attributes{};
  std::vector<uint8_t> accumulate{};
};

struct Result {
  sy_status status = SY_OK;
  std::string message;
  std::vector<Tensor> outputs;
  sy_kernel_info info{};
  std::vector<int32_t> inplace;
  const std::vector<double>& operator[](size_t o) const { return outputs[o].values; }
};

class Backend {
 public:
  // A new instance of the plugin beside the test program (or of the file that `name` is), and its device 0 opened. What
  // `settings` does not name is read from the environment, as SWITCHYARD_<name>.
  explicit Backend(const std::string& name, std::map<std::string, std::string> settings = {});
  ~Backend();
  Backend(const Backend&) = delete;

  // What outputs hold before the launch is what `outputs` holds, or NaN and the like where it has no values.
  Result Run(const Op& op, const std::vector<Tensor>& inputs, std::vector<Tensor> outputs);

  const sy_plugin& plugin() const { return plugin_; }
  sy_instance* instance() const { return plugin_.instance; }
  // An interface beside those below; nullptr where there is none.
  template <typename T>
  const T* Interface(const char* name) const {
    return static_cast<const T*>(plugin_.get_interface(plugin_.instance, name));
  }
  const sy_device_v2& api() const { return *api_; }
  const sy_kernel_v2& kernels() const { return *kernels_; }
  sy_device* device() const { return device_; }
  sy_stream* stream() const { return stream_; }
  const char* message() const { return error_.message; }
  sy_error* error() { return &error_; }

  sy_buffer* Upload(const std::vector<char>& bytes);
  std::vector<char> Download(sy_buffer* buffer, size_t bytes);
  sy_prepare_request Request(const Op& op, const std::vector<sy_tensor>& inputs,
                             const std::vector<sy_tensor>& outputs) const;

 private:
  sy_plugin plugin_{SY_HEADER(sy_plugin)};
  const sy_device_v2* api_ = nullptr;
  const sy_kernel_v2* kernels_ = nullptr;
  sy_device* device_ = nullptr;
  sy_stream* stream_ = nullptr;  // of an asynchronous device
  sy_error error_{SY_HEADER(sy_error)};
};

std::vector<char> Encode(const Tensor& tensor);
void Decode(const std::vector<char>& bytes, Tensor* tensor);

}  // namespace switchyard::test
