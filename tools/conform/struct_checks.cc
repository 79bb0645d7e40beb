#include "tools/conform/struct_checks.h"

#include <algorithm>
#include <cstring>

#include "core/abi/ops.h"
#include "tools/conform/values.h"

namespace switchyard::conform {
namespace {

constexpr uint8_t kUntouched = 0xCD;

// A struct of the interface with room behind it: `size` is what its header claims.
template <typename S>
class Sized {
 public:
  Sized(uint32_t size, uint16_t minor) : bytes_(sizeof(S) + 64, kUntouched), size_(size) {
    std::memset(bytes_.data(), 0, std::min<size_t>(size, sizeof(S)));
    get()->header = {size, SY_ABI_MAJOR, minor};
  }
  S* get() { return reinterpret_cast<S*>(bytes_.data()); }
  // Nothing beyond what the plugin may know was written.
  Status Untouched(const char* what) const {
    for (size_t i = std::min<size_t>(size_, sizeof(S)); i < bytes_.size(); ++i) {
      if (bytes_[i] != kUntouched) {
        return Internal("{}: byte {} was written; the header says {} bytes", what, i, size_);
      }
    }
    return OkStatus();
  }

 private:
  std::vector<uint8_t> bytes_;
  uint32_t size_;
};

Status Expect(sy_status found, std::initializer_list<sy_status> wanted, const char* what) {
  if (std::find(wanted.begin(), wanted.end(), found) != wanted.end()) return OkStatus();
  return Internal("{}: expected status {}, found {}", what, *wanted.begin(), found);
}

struct AddRequest {
  AddRequest() {
    tensor = Contiguous(SY_F32, {5});
    inputs[0] = inputs[1] = tensor;
    attributes.header = SY_HEADER(sy_pointwise_attributes);
    attributes.instruction_count = attributes.output_count = 1;
    attributes.instructions[0] = {SY_PW_ADD, 0, 1, 0, 0};
    attributes.outputs[0] = 2;
  }
  void Fill(sy_prepare_request* request) const {
    request->op = "pointwise";
    request->op_version = 1;
    request->attributes = &attributes;
    request->attributes_size = sizeof attributes;
    request->input_count = 2;
    request->output_count = 1;
    request->inputs = inputs;
    request->outputs = &tensor;
    request->workspace_limit = 1 << 20;
  }
  sy_tensor tensor, inputs[2];
  sy_pointwise_attributes attributes{};
};

}  // namespace

void CheckStructs(Recorder& recorder, const Plugin& plugin, Device& device) {
  const sy_device_v1* api = device.api();
  const int index = device.info().index;
  recorder.Run("struct/device_info_smaller", [&]() -> Status {
    Sized<sy_device_info> info(offsetof(sy_device_info, largest_allocation), 0);
    SY_RETURN_IF_ERROR(Expect(api->query(index, info.get(), nullptr), {SY_OK}, "query"));
    SY_RETURN_IF_ERROR(info.Untouched("sy_device_info"));
    return info.get()->memory_bytes == device.info().memory_bytes ? OkStatus()
                                                                  : Internal("memory_bytes was not filled");
  });
  recorder.Run("struct/device_info_larger", [&]() -> Status {
    Sized<sy_device_info> info(sizeof(sy_device_info) + 64, 3);
    SY_RETURN_IF_ERROR(Expect(api->query(index, info.get(), nullptr), {SY_OK}, "query"));
    return info.Untouched("sy_device_info");
  });
  recorder.Run("struct/error_smaller", [&]() -> Status {
    Sized<sy_error> error(offsetof(sy_error, message) + 32, 0);
    sy_device_info info{};
    info.header = SY_HEADER(sy_device_info);
    SY_RETURN_IF_ERROR(Expect(api->query(1 << 20, &info, error.get()), {SY_INVALID}, "query of device 1048576"));
    return error.Untouched("sy_error");
  });
  recorder.Run("struct/error_text", [&]() -> Status {
    Sized<sy_error> error(sizeof(sy_error) + 64, 3);
    sy_device_info info{};
    info.header = SY_HEADER(sy_device_info);
    SY_RETURN_IF_ERROR(Expect(api->query(-1, &info, error.get()), {SY_INVALID}, "query of device -1"));
    SY_RETURN_IF_ERROR(error.Untouched("sy_error"));
    if (error.get()->message[0] == '\0') return Internal("an error came without a message");
    if (strnlen(error.get()->message, sizeof error.get()->message) == sizeof error.get()->message) {
      return Internal("an error message is not terminated");
    }
    return OkStatus();
  });
  recorder.Run("struct/no_error_wanted", [&]() -> Status {
    sy_device_info info{};
    info.header = SY_HEADER(sy_device_info);
    sy_device* opened = nullptr;
    sy_open_options options{};
    options.header = SY_HEADER(sy_open_options);
    SY_RETURN_IF_ERROR(Expect(api->query(1 << 20, &info, nullptr), {SY_INVALID}, "query of device 1048576"));
    return Expect(api->open(1 << 20, &options, &opened, nullptr), {SY_INVALID, SY_DEVICE_LOST},
                  "open of device 1048576");
  });
  recorder.Run("struct/open_options_smaller_and_larger", [&]() -> Status {
    for (const uint32_t size : {uint32_t{sizeof(sy_header)}, uint32_t{sizeof(sy_open_options)} + 64}) {
      Sized<sy_open_options> options(size, 3);
      sy_device* opened = nullptr;
      SY_RETURN_IF_ERROR(Expect(api->open(index, options.get(), &opened, nullptr), {SY_OK}, "open"));
      api->close(opened);
    }
    return OkStatus();
  });

  recorder.Run("struct/stream_options_smaller_and_larger", [&]() -> Status {
    if (!device.async()) return Unimplemented("a synchronous device");
    for (const uint32_t size : {uint32_t{sizeof(sy_header)}, uint32_t{sizeof(sy_stream_options)} + 64}) {
      Sized<sy_stream_options> options(size, 3);
      sy_stream* stream = nullptr;
      SY_RETURN_IF_ERROR(
          Expect(api->stream_create(device.handle(), options.get(), &stream, nullptr), {SY_OK}, "stream_create"));
      api->stream_destroy(device.handle(), stream);
    }
    return OkStatus();
  });

  const auto* kernels = plugin.Interface<sy_kernel_v1>("kernel/1");
  if (kernels == nullptr) return;
  const AddRequest add;
  recorder.Run("struct/prepare_larger", [&]() -> Status {
    Sized<sy_prepare_request> request(sizeof(sy_prepare_request) + 64, 3);
    Sized<sy_kernel_info> info(sizeof(sy_kernel_info) + 64, 3);
    add.Fill(request.get());
    int32_t inplace[1] = {-1};
    info.get()->inplace = inplace;
    sy_kernel* kernel = nullptr;
    const sy_status status = kernels->prepare(device.handle(), request.get(), &kernel, info.get(), nullptr);
    SY_RETURN_IF_ERROR(Expect(status, {SY_OK, SY_UNSUPPORTED}, "prepare of pointwise"));
    if (status == SY_OK) kernels->release(kernel);
    SY_RETURN_IF_ERROR(request.Untouched("sy_prepare_request"));
    return info.Untouched("sy_kernel_info");
  });
  recorder.Run("struct/kernel_info_smaller", [&]() -> Status {
    Sized<sy_prepare_request> request(sizeof(sy_prepare_request), 0);
    Sized<sy_kernel_info> info(offsetof(sy_kernel_info, inplace), 0);
    add.Fill(request.get());
    sy_kernel* kernel = nullptr;
    const sy_status status = kernels->prepare(device.handle(), request.get(), &kernel, info.get(), nullptr);
    SY_RETURN_IF_ERROR(Expect(status, {SY_OK, SY_UNSUPPORTED}, "prepare of pointwise"));
    if (status == SY_OK) kernels->release(kernel);
    return info.Untouched("sy_kernel_info");
  });
  recorder.Run("struct/attributes_larger", [&]() -> Status {
    // A later version's attributes: more than is known, and zero.
    std::vector<uint8_t> later(sizeof add.attributes + 64, 0);
    std::memcpy(later.data(), &add.attributes, sizeof add.attributes);
    const sy_header header = {static_cast<uint32_t>(later.size()), SY_ABI_MAJOR, 3};
    std::memcpy(later.data(), &header, sizeof header);
    Sized<sy_prepare_request> request(sizeof(sy_prepare_request), 0);
    Sized<sy_kernel_info> info(sizeof(sy_kernel_info), 0);
    add.Fill(request.get());
    request.get()->attributes = later.data();
    request.get()->attributes_size = static_cast<uint32_t>(later.size());
    sy_kernel* kernel = nullptr;
    const sy_status status = kernels->prepare(device.handle(), request.get(), &kernel, info.get(), nullptr);
    SY_RETURN_IF_ERROR(Expect(status, {SY_OK, SY_UNSUPPORTED}, "prepare of pointwise"));
    if (status == SY_OK) kernels->release(kernel);
    return OkStatus();
  });
  recorder.Run("struct/binding_larger", [&]() -> Status {
    Sized<sy_prepare_request> request(sizeof(sy_prepare_request), 0);
    Sized<sy_kernel_info> info(sizeof(sy_kernel_info), 0);
    add.Fill(request.get());
    sy_kernel* kernel = nullptr;
    const sy_status prepared = kernels->prepare(device.handle(), request.get(), &kernel, info.get(), nullptr);
    SY_RETURN_IF_ERROR(Expect(prepared, {SY_OK, SY_UNSUPPORTED}, "prepare of pointwise"));
    if (prepared == SY_UNSUPPORTED) return Unimplemented("no pointwise kernel to bind");
    Sized<sy_binding> binding(sizeof(sy_binding) + 64, 3);
    const uint64_t scratch_bytes =
        1 + info.get()->workspace_bytes + info.get()->persistent_bytes + info.get()->residual_bytes;
    SY_ASSIGN_OR_RETURN(const Buffer operand, device.Allocate(3 * device.info().alignment + 64));
    SY_ASSIGN_OR_RETURN(const Buffer scratch, device.Allocate(scratch_bytes));
    const sy_place inputs[] = {operand.at(0), operand.at(device.info().alignment)},
                   output = operand.at(2 * device.info().alignment);
    binding.get()->inputs = inputs;
    binding.get()->outputs = &output;
    binding.get()->workspace = binding.get()->persistent = binding.get()->residual = scratch.at(0);
    sy_bound* bound = nullptr;
    sy_launch launch = nullptr;
    const sy_status status = kernels->bind(kernel, binding.get(), &bound, &launch, nullptr);
    if (status == SY_OK) kernels->unbind(bound);
    kernels->release(kernel);
    SY_RETURN_IF_ERROR(Expect(status, {SY_OK}, "bind"));
    if (launch == nullptr) return Internal("bind succeeded without a launch function");
    return binding.Untouched("sy_binding");
  });
  const auto refuses = [&](const char* what, std::initializer_list<sy_status> wanted, auto change) {
    recorder.Run(std::string("struct/refuses_") + what, [&]() -> Status {
      sy_prepare_request request{};
      request.header = SY_HEADER(sy_prepare_request);
      AddRequest nonsense;
      nonsense.Fill(&request);
      change(request, nonsense);
      sy_kernel_info info{};
      info.header = SY_HEADER(sy_kernel_info);
      int32_t inplace[1] = {-1};
      info.inplace = inplace;
      sy_kernel* kernel = nullptr;
      const sy_status status = kernels->prepare(device.handle(), &request, &kernel, &info, nullptr);
      if (status == SY_OK) kernels->release(kernel);
      return Expect(status, wanted, "prepare");
    });
  };
  using Request = sy_prepare_request;
  refuses("unknown_op", {SY_UNSUPPORTED}, [](Request& request, AddRequest&) { request.op = "no_such_op"; });
  refuses("later_version", {SY_UNSUPPORTED}, [](Request& request, AddRequest&) { request.op_version = 99; });
  refuses("missing_attributes", {SY_INVALID, SY_UNSUPPORTED}, [](Request& request, AddRequest&) {
    request.attributes = nullptr;
    request.attributes_size = 0;
  });
  refuses("wrong_shapes", {SY_INVALID, SY_UNSUPPORTED},
          [](Request&, AddRequest& add) { add.inputs[1] = Contiguous(SY_F32, {3}); });
  refuses("missing_input", {SY_INVALID, SY_UNSUPPORTED},
          [](Request& request, AddRequest&) { request.input_count = 1; });
  refuses("unknown_dtype", {SY_INVALID, SY_UNSUPPORTED}, [](Request&, AddRequest& add) { add.inputs[0].dtype = 99; });
}

}  // namespace switchyard::conform
