// A plugin behind interposers, used through its C interfaces as the engine uses it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/abi/ops.h"
#include "core/runtime/device/device.h"
#include "core/runtime/plugins/interpose.h"
#include "core/runtime/plugins/registry.h"

namespace switchyard {

// Null where it cannot be had, with the reason as a failure of the test.
inline std::shared_ptr<Plugin> Interposed(const char* backend, const std::vector<std::string>& interposers) {
  auto plugin = Registry::Get().Find(PluginKind::kBackend, backend);
  if (plugin.ok()) plugin = Interpose(*plugin, interposers);
  if (!plugin.ok()) {
    ADD_FAILURE() << Message(plugin.status());
    return nullptr;
  }
  return *plugin;
}

inline sy_place At(sy_buffer* buffer, uint64_t offset = 0) { return {buffer, nullptr, offset}; }
inline sy_place Host(void* address) { return {nullptr, address, 0}; }

inline sy_tensor Vector(int64_t length) {
  sy_tensor tensor{};
  tensor.dtype = SY_F32;
  tensor.rank = 1;
  tensor.dims[0] = length;
  tensor.strides[0] = 1;
  return tensor;
}

// y = -x over `length` floats.
struct Negation {
  explicit Negation(int64_t length) : tensor(Vector(length)) {
    attributes.instruction_count = attributes.output_count = 1;
    attributes.outputs[0] = 1;
    attributes.instructions[0] = {SY_PW_NEG, 0, 0, 0, 0};
    request.header = SY_HEADER(sy_prepare_request);
    request.op = "pointwise";
    request.op_version = 1;
    request.attributes = &attributes;
    request.attributes_size = sizeof attributes;
    request.input_count = request.output_count = 1;
    request.inputs = request.outputs = &tensor;
    request.workspace_limit = 1 << 20;
    info.header = SY_HEADER(sy_kernel_info);
    info.inplace = &inplace;
  }
  Negation(const Negation&) = delete;
  sy_tensor tensor;
  sy_pointwise_attributes attributes{};
  sy_prepare_request request{};
  sy_kernel_info info{};
  int32_t inplace = -1;
};

// The places of a Negation's binding.
struct Places {
  Places(sy_place from, sy_place to) : input(from), output(to) {
    binding.header = SY_HEADER(sy_binding);
    binding.inputs = &input;
    binding.outputs = &output;
  }
  Places(const Places&) = delete;
  sy_place input, output;
  sy_binding binding{};
};

}  // namespace switchyard
