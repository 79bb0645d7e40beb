#include "tools/conform/instance_checks.h"

#include <array>
#include <thread>

#include "core/abi/device.h"
#include "core/abi/kernel.h"
#include "core/abi/ops.h"
#include "core/runtime/plugins/abi_status.h"
#include "tools/conform/given_struct.h"
#include "tools/conform/op_run.h"
#include "tools/conform/own_instance.h"

namespace switchyard::conform {
namespace {

// A device that an instance opened, with some memory and, where the plugin has one, a kernel that doubles numbers
// there.
class Doubler {
 public:
  explicit Doubler(const OwnInstance& instance)
      : instance_(instance.handle()),
        api_(*instance.Interface<sy_device_v2>("device/2")),
        kernels_(instance.Interface<sy_kernel_v2>("kernel/2")) {}
  ~Doubler() { Close(); }
  Doubler(const Doubler&) = delete;
  Doubler& operator=(const Doubler&) = delete;

  Status Open(int index, float first) {
    sy_error error = EmptyError();
    sy_device_info info{};
    info.header = SY_HEADER(sy_device_info);
    SY_RETURN_IF_ERROR(FromAbi(api_.query(instance_, index, &info, &error), error, "query"));
    async_ = info.flags & SY_DEVICE_ASYNC;
    SY_RETURN_IF_ERROR(FromAbi(api_.open(instance_, index, nullptr, &device_, &error), error, "open"));
    SY_RETURN_IF_ERROR(FromAbi(api_.alloc(device_, kBytes, nullptr, &from_, &error), error, "alloc"));
    SY_RETURN_IF_ERROR(FromAbi(api_.alloc(device_, kBytes, nullptr, &to_, &error), error, "alloc"));
    if (async_) {
      SY_RETURN_IF_ERROR(FromAbi(api_.stream_create(device_, nullptr, &stream_, &error), error, "stream_create"));
    }
    for (int i = 0; i < kCount; ++i) numbers_[i] = first + static_cast<float>(i % 1000);
    SY_RETURN_IF_ERROR(FromAbi(
        api_.copy(device_, nullptr, At(from_), {nullptr, numbers_.data(), 0}, kBytes, nullptr, &error), error, "copy"));
    return Prepare();
  }

  // Launches, and compares with what was put there when the device was opened.
  Status Run() {
    sy_error error = EmptyError();
    if (launch_ != nullptr) {
      SY_RETURN_IF_ERROR(FromAbi(launch_(bound_, stream_, &error), error, "launch"));
      if (async_) {
        SY_RETURN_IF_ERROR(FromAbi(api_.synchronize(device_, stream_, nullptr, &error), error, "synchronize"));
      }
      SY_RETURN_IF_ERROR(Expect(to_, 2));
    }
    return Expect(from_, 1);
  }

  void Close() {
    if (launch_ != nullptr) (void)api_.synchronize(device_, nullptr, nullptr, nullptr);
    if (bound_ != nullptr) kernels_->unbind(device_, bound_);
    if (kernel_ != nullptr) kernels_->release(device_, kernel_);
    if (stream_ != nullptr) api_.stream_destroy(device_, stream_);
    if (from_ != nullptr) api_.free(device_, from_);
    if (to_ != nullptr) api_.free(device_, to_);
    if (device_ != nullptr) api_.close(device_);
    bound_ = nullptr;
    kernel_ = nullptr;
    stream_ = nullptr;
    from_ = to_ = nullptr;
    device_ = nullptr;
    launch_ = nullptr;
  }

 private:
  static constexpr int kCount = 8192;
  static constexpr uint64_t kBytes = kCount * sizeof(float);

  static sy_place At(sy_buffer* buffer) { return {buffer, nullptr, 0}; }

  Status Prepare() {
    if (kernels_ == nullptr) return OkStatus();
    sy_pointwise_attributes twice{};
    twice.instruction_count = twice.output_count = 1;
    twice.instructions[0] = {SY_PW_ADD, 0, 0, 0, 0};
    twice.outputs[0] = 1;
    const sy_tensor tensor = Contiguous(SY_F32, {kCount});
    sy_prepare_request request{};
    request.header = SY_HEADER(sy_prepare_request);
    request.op = "pointwise";
    request.op_version = 1;
    request.attributes = &twice;
    request.attributes_size = sizeof twice;
    request.input_count = request.output_count = 1;
    request.inputs = request.outputs = &tensor;
    request.workspace_limit = kWorkspaceLimit;
    sy_kernel_info info{};
    info.header = SY_HEADER(sy_kernel_info);
    int32_t inplace = -1;
    info.inplace = &inplace;
    sy_error error = EmptyError();
    const sy_status prepared = kernels_->prepare(device_, &request, &kernel_, &info, &error);
    if (prepared == SY_UNSUPPORTED) kernel_ = nullptr;
    if (prepared == SY_UNSUPPORTED) return OkStatus();
    SY_RETURN_IF_ERROR(FromAbi(prepared, error, "prepare"));
    if (info.workspace_bytes > 0 || info.persistent_bytes > 0 || info.constant_bytes > 0) return OkStatus();
    const sy_place from = At(from_), to = At(to_);
    sy_binding binding{};
    binding.header = SY_HEADER(sy_binding);
    binding.inputs = &from;
    binding.outputs = &to;
    return FromAbi(kernels_->bind(device_, kernel_, &binding, &bound_, &launch_, &error), error, "bind");
  }

  Status Expect(sy_buffer* buffer, float factor) {
    std::vector<float> found(kCount);
    sy_error error = EmptyError();
    SY_RETURN_IF_ERROR(FromAbi(
        api_.copy(device_, nullptr, {nullptr, found.data(), 0}, At(buffer), kBytes, nullptr, &error), error, "copy"));
    for (int i = 0; i < kCount; ++i) {
      if (found[i] == factor * numbers_[i]) continue;
      return Internal("number {} is {}, expected {}", i, found[i], factor * numbers_[i]);
    }
    return OkStatus();
  }

  sy_instance* const instance_;
  const sy_device_v2& api_;
  const sy_kernel_v2* const kernels_;
  bool async_ = false;
  std::array<float, kCount> numbers_{};
  sy_device* device_ = nullptr;
  sy_stream* stream_ = nullptr;
  sy_buffer *from_ = nullptr, *to_ = nullptr;
  sy_kernel* kernel_ = nullptr;
  sy_bound* bound_ = nullptr;
  sy_launch launch_ = nullptr;
};

Status CheckTwoAtOnce(const Plugin& plugin, const OwnInstance& a, const OwnInstance& b, int index) {
  if (a.Interfaces() != b.Interfaces()) {
    return Internal("one instance offers {}, another {}", a.Interfaces(), b.Interfaces());
  }
  for (const OwnInstance* one : {&a, &b}) {
    for (const char* name : {"device/2", "kernel/2", "memory_ext/2", "capture/2", "profiler/2", "region/2"}) {
      const bool expected = plugin.Interface<sy_header>(name) != nullptr;
      if (expected && one->Interface<sy_header>(name) == nullptr) return Internal("another instance lacks {}", name);
    }
    SY_ASSIGN_OR_RETURN(const int expected, plugin.DeviceCount());
    int32_t count = 0;
    sy_error error = EmptyError();
    SY_RETURN_IF_ERROR(
        FromAbi(one->Interface<sy_device_v2>("device/2")->count(one->handle(), &count, &error), error, "count"));
    if (count != expected) return Internal("one instance has {} devices, another {}", expected, count);
  }
  Doubler first(a), second(b);
  SY_RETURN_IF_ERROR(Annotate(first.Open(index, 1), "the first instance"));
  SY_RETURN_IF_ERROR(Annotate(second.Open(index, 5), "the second instance"));
  std::array<Status, 2> results;
  const auto work = [](Doubler& doubler, Status& result) {
    for (int round = 0; round < 20 && result.ok(); ++round) result = doubler.Run();
  };
  std::thread other([&] { work(second, results[1]); });
  work(first, results[0]);
  other.join();
  SY_RETURN_IF_ERROR(Annotate(results[0], "the first of two instances at work"));
  SY_RETURN_IF_ERROR(Annotate(results[1], "the second of two instances at work"));
  first.Close();
  SY_RETURN_IF_ERROR(Annotate(second.Run(), "after another instance closed its device"));
  SY_RETURN_IF_ERROR(Annotate(first.Open(index, 9), "opened again"));
  SY_RETURN_IF_ERROR(Annotate(first.Run(), "opened again"));
  second.Close();
  SY_RETURN_IF_ERROR(Annotate(first.Run(), "after another instance closed its device"));
  first.Close();
  return OwnInstance::HostsAreApart();
}

}  // namespace

void CheckInstances(Recorder& recorder, const Plugin& plugin, int device) {
  recorder.Run("instance/two_at_once", [&]() -> Status {
    SY_ASSIGN_OR_RETURN(const auto first, OwnInstance::Make(plugin));
    SY_ASSIGN_OR_RETURN(const auto second, OwnInstance::Make(plugin));
    return CheckTwoAtOnce(plugin, *first, *second, device);
  });
}

}  // namespace switchyard::conform
