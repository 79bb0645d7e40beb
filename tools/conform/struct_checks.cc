#include "tools/conform/struct_checks.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>

#include "core/abi/ops.h"
#include "tools/conform/given_struct.h"
#include "tools/conform/op_run.h"
#include "tools/conform/values.h"

namespace switchyard::conform {
namespace {

// The sum of two arrays of five elements, as a request that may be spoilt.
struct AddRequest {
  AddRequest() {
    tensor = Contiguous(SY_F32, {5});
    inputs[0] = inputs[1] = tensor;
    attributes.instruction_count = attributes.output_count = 1;
    attributes.instructions[0] = {SY_PW_ADD, 0, 1, 0, 0};
    attributes.outputs[0] = 2;
  }
  sy_prepare_request Request() const {
    sy_prepare_request request{};
    request.header = SY_HEADER(sy_prepare_request);
    request.op = "pointwise";
    request.op_version = 1;
    request.attributes = &attributes;
    request.attributes_size = sizeof attributes;
    request.input_count = 2;
    request.output_count = 1;
    request.inputs = inputs;
    request.outputs = &tensor;
    request.workspace_limit = kWorkspaceLimit;
    return request;
  }
  sy_tensor tensor, inputs[2];
  sy_pointwise_attributes attributes{};
};

// Prepares, and gives the kernel back. The kernel's info, where somebody wants it.
sy_status PrepareAndRelease(const sy_kernel_v2& kernels, sy_device* device, const sy_prepare_request* request,
                            sy_error* error) {
  sy_kernel_info info{};
  info.header = SY_HEADER(sy_kernel_info);
  int32_t inplace[1] = {-1};
  info.inplace = inplace;
  sy_kernel* kernel = nullptr;
  const sy_status status = kernels.prepare(device, request, &kernel, &info, error);
  if (status == SY_OK) kernels.release(device, kernel);
  return status;
}

// A function that takes a struct: `call` makes the whole call with it, and undoes what came of it. `least` is how many
// bytes the very first version of the struct had. SY_UNSUPPORTED for the struct as these headers know it means that
// there is nothing to try.
template <typename S>
void CheckTaker(Recorder& recorder, const std::string& name, size_t least, const S& content,
                const std::function<sy_status(const S*, sy_error*)>& call) {
  const auto try_with = [&](uint32_t size, const sy_extension* chain, WatchedError& error) {
    Sized<S> given(size, content);
    given.get()->header.next = chain;
    return call(given.get(), error.get());
  };
  const auto offered = [&](WatchedError& error) -> Status {
    const sy_status status = try_with(sizeof(S), nullptr, error);
    SY_RETURN_IF_ERROR(error.Judge(status, name));
    if (status == SY_UNSUPPORTED) return Unimplemented("the function is not offered");
    return ExpectStatus(status, {SY_OK}, name);
  };
  recorder.Run(fmt::format("struct/{}_smaller_and_larger", name), [&]() -> Status {
    WatchedError error;
    SY_RETURN_IF_ERROR(offered(error));
    for (const size_t size : {least, sizeof(S) + kLongerBy}) {
      const sy_status status = try_with(static_cast<uint32_t>(size), nullptr, error);
      SY_RETURN_IF_ERROR(error.Judge(status, name));
      SY_RETURN_IF_ERROR(ExpectStatus(status, {SY_OK}, fmt::format("{} of {} bytes", name, size)));
    }
    return OkStatus();
  });
  recorder.Run(fmt::format("struct/{}_extensions", name), [&]() -> Status {
    WatchedError error;
    SY_RETURN_IF_ERROR(offered(error));
    for (const bool required : {false, true, false}) {
      const UnknownExtension unknown(required);
      const sy_status status = try_with(sizeof(S), unknown.chain(), error);
      SY_RETURN_IF_ERROR(error.Judge(status, name));
      SY_RETURN_IF_ERROR(
          ExpectStatus(status, {required ? SY_UNSUPPORTED : SY_OK},
                       fmt::format("{} with an unknown {} extension", name, required ? "required" : "optional")));
    }
    return OkStatus();
  });
}

// The same for a struct that the plugin fills.
template <typename S>
Status CheckFilledExtensions(const char* name, const std::function<sy_status(S*, sy_error*)>& call) {
  WatchedError error;
  for (const bool required : {false, true}) {
    const UnknownExtension unknown(required);
    Sized<S> given(sizeof(S));
    given.get()->header.next = unknown.chain();
    const sy_status status = call(given.get(), error.get());
    SY_RETURN_IF_ERROR(error.Judge(status, name));
    if (!required && status == SY_UNSUPPORTED) return Unimplemented("the function is not offered");
    SY_RETURN_IF_ERROR(
        ExpectStatus(status, {required ? SY_UNSUPPORTED : SY_OK},
                     fmt::format("{} with an unknown {} extension", name, required ? "required" : "optional")));
    if (given.get()->header.next != unknown.chain()) return Internal("{} changed the header", name);
  }
  return OkStatus();
}

class DeviceStructs {
 public:
  DeviceStructs(Recorder& recorder, Device& device)
      : recorder_(recorder),
        device_(device),
        api_(*device.api()),
        instance_(device.plugin().table().instance),
        index_(device.info().index) {}

  void Check() {
    CheckInfo();
    CheckError();
    CheckTaker<sy_open_options>(recorder_, "open_options", sizeof(sy_header), {}, [&](auto* options, sy_error* error) {
      sy_device* opened = nullptr;
      const sy_status status = api_.open(instance_, index_, options, &opened, error);
      if (status == SY_OK) api_.close(opened);
      return status;
    });
    CheckTaker<sy_alloc_options>(recorder_, "alloc_options", sizeof(sy_header), {},
                                 [&](auto* options, sy_error* error) {
                                   sy_buffer* buffer = nullptr;
                                   const sy_status status = api_.alloc(handle(), kBytes, options, &buffer, error);
                                   if (status == SY_OK) api_.free(handle(), buffer);
                                   return status;
                                 });
    auto buffer = device_.Allocate(kBytes);
    if (!buffer.ok()) return recorder_.Run("struct/copy_options", [&] { return buffer.status(); });
    Bytes host(kBytes);
    CheckTaker<sy_copy_options>(recorder_, "copy_options", sizeof(sy_header), {}, [&](auto* options, sy_error* error) {
      return api_.copy(handle(), nullptr, buffer->at(0), HostPlace(host.data()), kBytes, options, error);
    });
    CheckTaker<sy_fill_options>(recorder_, "fill_options", sizeof(sy_header), {}, [&](auto* options, sy_error* error) {
      if (api_.fill != nullptr) return api_.fill(handle(), nullptr, buffer->at(0), 7, kBytes, options, error);
      return NotOffered(error);
    });
    CheckTaker<sy_synchronize_options>(
        recorder_, "synchronize_options", sizeof(sy_header), {},
        [&](auto* options, sy_error* error) { return api_.synchronize(handle(), nullptr, options, error); });
    CheckTaker<sy_stream_options>(recorder_, "stream_options", sizeof(sy_header), {},
                                  [&](auto* options, sy_error* error) {
                                    if (!device_.async()) return NotOffered(error);
                                    sy_stream* stream = nullptr;
                                    const sy_status status = api_.stream_create(handle(), options, &stream, error);
                                    if (status == SY_OK && stream != nullptr) api_.stream_destroy(handle(), stream);
                                    return status;
                                  });
    CheckTaker<sy_event_options>(recorder_, "event_options", sizeof(sy_header), {},
                                 [&](auto* options, sy_error* error) {
                                   if (!device_.async()) return NotOffered(error);
                                   sy_event* event = nullptr;
                                   const sy_status status = api_.event_create(handle(), options, &event, error);
                                   if (status == SY_OK && event != nullptr) api_.event_destroy(handle(), event);
                                   return status;
                                 });
    CheckTaker<sy_capture_options>(recorder_, "capture_options", sizeof(sy_header), {},
                                   [&](auto* options, sy_error* error) { return BeginCapture(options, error); });
    CheckTaker<sy_semaphore_options>(
        recorder_, "semaphore_options", sizeof(sy_header), {}, [&](auto* options, sy_error* error) {
          const auto* const semaphores = device_.plugin().Interface<sy_semaphore_v1>("semaphore/1");
          if (semaphores == nullptr) return NotOffered(error);
          sy_semaphore* semaphore = nullptr;
          const sy_status status = semaphores->create(handle(), options, &semaphore, error);
          if (status == SY_OK && semaphore != nullptr) semaphores->destroy(handle(), semaphore);
          return status;
        });
    recorder_.Run("struct/error_untouched", [&] { return CheckErrorUntouched(); });
  }

 private:
  static constexpr uint64_t kBytes = 4096;

  sy_device* handle() const { return device_.handle(); }
  static sy_status NotOffered(sy_error* error) {
    std::snprintf(error->message, sizeof error->message, "not offered");
    return SY_UNSUPPORTED;
  }

  void CheckInfo() {
    recorder_.Run("struct/device_info_smaller", [&]() -> Status {
      for (const size_t size : {offsetof(sy_device_info, largest_allocation), offsetof(sy_device_info, dtypes)}) {
        Sized<sy_device_info> info(static_cast<uint32_t>(size));
        SY_RETURN_IF_ERROR(ExpectStatus(api_.query(instance_, index_, info.get(), nullptr), {SY_OK}, "query"));
        SY_RETURN_IF_ERROR(info.Untouched("sy_device_info"));
        if (info.get()->memory_bytes != device_.info().memory_bytes) return Internal("memory_bytes was not filled");
      }
      return OkStatus();
    });
    recorder_.Run("struct/device_info_larger", [&]() -> Status {
      Sized<sy_device_info> info(sizeof(sy_device_info) + kLongerBy);
      SY_RETURN_IF_ERROR(ExpectStatus(api_.query(instance_, index_, info.get(), nullptr), {SY_OK}, "query"));
      return info.Untouched("sy_device_info");
    });
    recorder_.Run("struct/device_info_extensions", [&]() -> Status {
      return CheckFilledExtensions<sy_device_info>(
          "query", [&](sy_device_info* info, sy_error* error) { return api_.query(instance_, index_, info, error); });
    });
  }

  void CheckError() {
    sy_device_info info{};
    info.header = SY_HEADER(sy_device_info);
    recorder_.Run("struct/error_smaller", [&]() -> Status {
      Sized<sy_error> error(offsetof(sy_error, message) + 32);
      SY_RETURN_IF_ERROR(
          ExpectStatus(api_.query(instance_, 1 << 20, &info, error.get()), {SY_INVALID}, "query of device 1048576"));
      return error.Untouched("sy_error");
    });
    recorder_.Run("struct/error_text", [&]() -> Status {
      Sized<sy_error> larger(sizeof(sy_error) + kLongerBy);
      SY_RETURN_IF_ERROR(
          ExpectStatus(api_.query(instance_, -1, &info, larger.get()), {SY_INVALID}, "query of device -1"));
      SY_RETURN_IF_ERROR(larger.Untouched("sy_error"));
      WatchedError error;
      return error.Judge(api_.query(instance_, -1, &info, error.get()), "query of device -1");
    });
    recorder_.Run("struct/no_error_wanted", [&]() -> Status {
      sy_device* opened = nullptr;
      sy_open_options options{};
      options.header = SY_HEADER(sy_open_options);
      SY_RETURN_IF_ERROR(
          ExpectStatus(api_.query(instance_, 1 << 20, &info, nullptr), {SY_INVALID}, "query of device 1048576"));
      return ExpectStatus(api_.open(instance_, 1 << 20, &options, &opened, nullptr), {SY_INVALID, SY_DEVICE_LOST},
                          "open of device 1048576");
    });
  }

  sy_status BeginCapture(const sy_capture_options* options, sy_error* error) {
    const auto* const capture = device_.capture();
    if (capture == nullptr) return NotOffered(error);
    const auto stream = device_.NewStream();
    if (!stream.ok()) return SY_INTERNAL;
    const sy_status status = capture->begin(handle(), stream->handle(), options, error);
    sy_graph* graph = nullptr;
    // An empty capture may well be refused at its end.
    if (status == SY_OK && capture->end(handle(), stream->handle(), &graph, nullptr) == SY_OK) {
      capture->release(handle(), graph);
    }
    return status;
  }

  // The functions that take no struct, and those of the rest that are called without options.
  Status CheckErrorUntouched() {
    WatchedError error;
    const auto good = [&](sy_status status, const char* what) -> Status {
      SY_RETURN_IF_ERROR(error.Judge(status, what));
      return ExpectStatus(status, {SY_OK}, what);
    };
    int32_t count = 0;
    SY_RETURN_IF_ERROR(good(api_.count(instance_, &count, error.get()), "count"));
    sy_device_info info{};
    info.header = SY_HEADER(sy_device_info);
    SY_RETURN_IF_ERROR(good(api_.query(instance_, index_, &info, error.get()), "query"));
    sy_device* another = nullptr;
    SY_RETURN_IF_ERROR(good(api_.open(instance_, index_, nullptr, &another, error.get()), "open without options"));
    api_.close(another);
    sy_buffer* handle_of_buffer = nullptr;
    SY_RETURN_IF_ERROR(good(api_.alloc(handle(), kBytes, nullptr, &handle_of_buffer, error.get()), "alloc"));
    const std::unique_ptr<sy_buffer, std::function<void(sy_buffer*)>> buffer(
        handle_of_buffer, [&](sy_buffer* one) { api_.free(handle(), one); });
    Bytes host(kBytes);
    const sy_place place = {handle_of_buffer, nullptr, 0};
    SY_RETURN_IF_ERROR(
        good(api_.copy(handle(), nullptr, place, HostPlace(host.data()), kBytes, nullptr, error.get()), "copy"));
    SY_RETURN_IF_ERROR(good(api_.copy(handle(), nullptr, place, HostPlace(host.data()), 0, nullptr, error.get()),
                            "a copy of no bytes"));
    if (api_.fill != nullptr) {
      SY_RETURN_IF_ERROR(good(api_.fill(handle(), nullptr, place, 1, kBytes, nullptr, error.get()), "fill"));
    }
    SY_RETURN_IF_ERROR(good(api_.synchronize(handle(), nullptr, nullptr, error.get()), "synchronize"));
    if (!device_.async()) return OkStatus();
    SY_ASSIGN_OR_RETURN(const Stream stream, device_.NewStream());
    sy_event* handle_of_event = nullptr;
    SY_RETURN_IF_ERROR(good(api_.event_create(handle(), nullptr, &handle_of_event, error.get()), "event_create"));
    if (handle_of_event == nullptr) return Internal("event_create succeeded without an event");
    const std::unique_ptr<sy_event, std::function<void(sy_event*)>> event(
        handle_of_event, [&](sy_event* one) { api_.event_destroy(handle(), one); });
    SY_RETURN_IF_ERROR(good(api_.event_record(handle(), event.get(), stream.handle(), error.get()), "event_record"));
    sy_status queried = SY_IN_PROGRESS;
    while (queried == SY_IN_PROGRESS) {
      queried = api_.event_query(handle(), event.get(), error.get());
      SY_RETURN_IF_ERROR(error.Judge(queried, "event_query"));
    }
    SY_RETURN_IF_ERROR(good(queried, "event_query"));
    SY_RETURN_IF_ERROR(good(api_.event_synchronize(handle(), event.get(), error.get()), "event_synchronize"));
    SY_RETURN_IF_ERROR(good(api_.stream_wait(handle(), stream.handle(), event.get(), error.get()), "stream_wait"));
    return good(api_.synchronize(handle(), stream.handle(), nullptr, error.get()), "synchronize of a stream");
  }

  Recorder& recorder_;
  Device& device_;
  const sy_device_v2& api_;
  sy_instance* const instance_;
  const int index_;
};

class KernelStructs {
 public:
  KernelStructs(Recorder& recorder, Device& device, const sy_kernel_v2& kernels)
      : recorder_(recorder), device_(device), kernels_(kernels) {}

  void Check() {
    const auto prepare = [&](const sy_prepare_request* request, sy_error* error) {
      return PrepareAndRelease(kernels_, device_.handle(), request, error);
    };
    CheckTaker<sy_prepare_request>(recorder_, "prepare_request", offsetof(sy_prepare_request, determinism),
                                   add_.Request(), prepare);
    CheckTaker<sy_binding>(recorder_, "binding", offsetof(sy_binding, constants), {},
                           [&](const sy_binding* binding, sy_error* error) { return Bind(*binding, error); });
    CheckInfo();
    recorder_.Run("struct/error_untouched_by_kernels", [&] { return CheckErrorUntouched(); });
    CheckRefusals();
  }

 private:
  struct Memory {
    Buffer operands, scratch;
    sy_place inputs[2], output;
  };
  // For the sum and what its kernel asks for.
  StatusOr<std::unique_ptr<Memory>> MemoryFor(const Kernel& kernel) {
    auto memory = std::make_unique<Memory>();
    const uint64_t alignment = device_.info().alignment;
    const uint64_t most = std::max({kernel.info().workspace_bytes, kernel.info().persistent_bytes,
                                    kernel.info().constant_bytes, kernel.info().residual_bytes});
    SY_ASSIGN_OR_RETURN(memory->operands, device_.Allocate(3 * alignment + 64));
    SY_ASSIGN_OR_RETURN(memory->scratch, device_.Allocate(4 * (most + alignment)));
    memory->inputs[0] = memory->operands.at(0);
    memory->inputs[1] = memory->operands.at(alignment);
    memory->output = memory->operands.at(2 * alignment);
    return memory;
  }
  void Fill(const Kernel& kernel, const Memory& memory, sy_binding& binding) const {
    const uint64_t alignment = device_.info().alignment, bytes = memory.scratch.bytes() / 4 / alignment * alignment;
    binding.inputs = memory.inputs;
    binding.outputs = &memory.output;
    if (kernel.info().workspace_bytes > 0) binding.workspace = memory.scratch.at(0);
    if (kernel.info().persistent_bytes > 0) binding.persistent = memory.scratch.at(bytes);
    if (kernel.info().residual_bytes > 0) binding.residual = memory.scratch.at(2 * bytes);
  }

  // The struct as it was given, with the places filled in.
  sy_status Bind(const sy_binding& given, sy_error* error) {
    auto kernel = device_.Prepare(add_.Request());
    if (kernel.status().code() == absl::StatusCode::kUnimplemented || (kernel.ok() && kernel->info().constant_bytes)) {
      std::snprintf(error->message, sizeof error->message, "no kernel to bind");
      return SY_UNSUPPORTED;
    }
    if (!kernel.ok()) return SY_INTERNAL;
    const auto memory = MemoryFor(*kernel);
    if (!memory.ok()) return SY_INTERNAL;
    Sized<sy_binding> binding(given.header.size);
    binding.get()->header.next = given.header.next;
    Fill(*kernel, **memory, *binding.get());
    sy_bound* bound = nullptr;
    sy_launch launch = nullptr;
    const sy_status status = kernels_.bind(device_.handle(), kernel->handle(), binding.get(), &bound, &launch, error);
    if (status == SY_OK) kernels_.unbind(device_.handle(), bound);
    return status == SY_OK && launch == nullptr ? SY_INTERNAL : status;
  }

  void CheckInfo() {
    recorder_.Run("struct/kernel_info_smaller_and_larger", [&]() -> Status {
      for (const size_t size : {offsetof(sy_kernel_info, constant_bytes), offsetof(sy_kernel_info, inplace),
                                offsetof(sy_kernel_info, second_choice), sizeof(sy_kernel_info) + kLongerBy}) {
        Sized<sy_kernel_info> info(static_cast<uint32_t>(size));
        int32_t inplace[1] = {-1};
        if (SY_HAS(sy_kernel_info, info.get(), inplace)) info.get()->inplace = inplace;
        const sy_prepare_request request = add_.Request();
        sy_kernel* kernel = nullptr;
        const sy_status status = kernels_.prepare(device_.handle(), &request, &kernel, info.get(), nullptr);
        SY_RETURN_IF_ERROR(ExpectStatus(status, {SY_OK, SY_UNSUPPORTED}, "prepare of pointwise"));
        if (status == SY_OK) kernels_.release(device_.handle(), kernel);
        SY_RETURN_IF_ERROR(info.Untouched("sy_kernel_info"));
      }
      return OkStatus();
    });
    recorder_.Run("struct/kernel_info_extensions", [&]() -> Status {
      return CheckFilledExtensions<sy_kernel_info>("prepare", [&](sy_kernel_info* info, sy_error* error) {
        const sy_prepare_request request = add_.Request();
        int32_t inplace[1] = {-1};
        info->inplace = inplace;
        sy_kernel* kernel = nullptr;
        const sy_status status = kernels_.prepare(device_.handle(), &request, &kernel, info, error);
        if (status == SY_OK) kernels_.release(device_.handle(), kernel);
        return status;
      });
    });
  }

  Status CheckErrorUntouched() {
    WatchedError error;
    SY_ASSIGN_OR_RETURN(const Kernel kernel, device_.Prepare(add_.Request()));
    if (kernel.info().constant_bytes > 0) return Unimplemented("a pointwise kernel with constants");
    SY_ASSIGN_OR_RETURN(const auto memory, MemoryFor(kernel));
    SY_ASSIGN_OR_RETURN(const Stream stream, device_.NewStream());
    sy_binding binding{};
    binding.header = SY_HEADER(sy_binding);
    Fill(kernel, *memory, binding);
    sy_bound* bound = nullptr;
    sy_launch launch = nullptr;
    const sy_status status = kernels_.bind(device_.handle(), kernel.handle(), &binding, &bound, &launch, error.get());
    SY_RETURN_IF_ERROR(error.Judge(status, "bind"));
    SY_RETURN_IF_ERROR(ExpectStatus(status, {SY_OK}, "bind"));
    const sy_status launched = launch(bound, stream.handle(), error.get());
    const Status judged = error.Judge(launched, "launch");
    const Status waited = device_.async() ? device_.Synchronize(stream) : OkStatus();
    kernels_.unbind(device_.handle(), bound);
    SY_RETURN_IF_ERROR(judged);
    SY_RETURN_IF_ERROR(waited);
    return ExpectStatus(launched, {SY_OK}, "launch");
  }

  void CheckRefusals() {
    const auto refuses = [&](const char* what, std::initializer_list<sy_status> wanted, auto change) {
      recorder_.Run(std::string("struct/refuses_") + what, [&]() -> Status {
        AddRequest nonsense;
        sy_prepare_request request = nonsense.Request();
        change(request, nonsense);
        WatchedError error;
        const sy_status status = PrepareAndRelease(kernels_, device_.handle(), &request, error.get());
        SY_RETURN_IF_ERROR(error.Judge(status, "prepare"));
        return ExpectStatus(status, wanted, "prepare");
      });
    };
    using Request = sy_prepare_request;
    refuses("unknown_op", {SY_UNSUPPORTED}, [](Request& request, AddRequest&) { request.op = "no_such_op"; });
    refuses("later_version", {SY_UNSUPPORTED}, [](Request& request, AddRequest&) { request.op_version = 99; });
    refuses("unknown_dtype", {SY_UNSUPPORTED}, [](Request&, AddRequest& add) { add.inputs[0].dtype = 99; });
    refuses("unknown_dtype_of_an_output", {SY_UNSUPPORTED}, [](Request&, AddRequest& add) { add.tensor.dtype = 99; });
    refuses("missing_attributes", {SY_INVALID, SY_UNSUPPORTED}, [](Request& request, AddRequest&) {
      request.attributes = nullptr;
      request.attributes_size = 0;
    });
    refuses("wrong_shapes", {SY_INVALID, SY_UNSUPPORTED},
            [](Request&, AddRequest& add) { add.inputs[1] = Contiguous(SY_F32, {3}); });
    refuses("missing_input", {SY_INVALID, SY_UNSUPPORTED},
            [](Request& request, AddRequest&) { request.input_count = 1; });
  }

  Recorder& recorder_;
  Device& device_;
  const sy_kernel_v2& kernels_;
  const AddRequest add_;
};

}  // namespace

void CheckStructs(Recorder& recorder, const Plugin& plugin, Device& device) {
  DeviceStructs(recorder, device).Check();
  const auto* kernels = plugin.Interface<sy_kernel_v2>("kernel/2");
  if (kernels != nullptr) KernelStructs(recorder, device, *kernels).Check();
}

}  // namespace switchyard::conform
