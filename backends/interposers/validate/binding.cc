// Bindings of kernel/2.
#include <algorithm>

#include "backends/interposers/validate/validate.h"

namespace switchyard {

// A binding that names these came to be, or ended.
void Validate::CountBinding(const std::vector<Named>& names, int change) {
  for (const Named& named : names) {
    auto* const buffer = named.kind == Named::kBuffer ? buffers_.Find(named.handle) : nullptr;
    if (buffer != nullptr && buffer->id == named.id) buffer->record.bindings += change;
  }
}

// What a binding has beside inputs and outputs lies apart from these, from one another, and from what other bindings
// have for themselves. Answers what this one has.
std::vector<Reserved> Validate::CheckParts(Checked& check, sy_device* device, const KernelRecord& kernel,
                                           const sy_binding& binding) {
  struct Part {
    std::string role;
    sy_place place;
    uint64_t bytes;
    bool is_extra, is_written;
  };
  std::vector<Part> parts;
  for (size_t i = 0; i < kernel.inputs.size(); ++i)
    parts.push_back({Text("input ", i), binding.inputs[i], Extent(kernel.inputs[i]), false, false});
  for (size_t o = 0; o < kernel.outputs.size(); ++o)
    parts.push_back({Text("output ", o), binding.outputs[o], Extent(kernel.outputs[o]), false, true});
  parts.push_back({"workspace", binding.workspace, kernel.workspace_bytes, true, true});
  parts.push_back({"persistent", binding.persistent, kernel.persistent_bytes, true, true});
  parts.push_back({"constants", binding.constants, kernel.constant_bytes, true, false});
  parts.push_back({"residual", binding.residual, kernel.residual_bytes, true, false});
  std::erase_if(parts, [](const Part& part) { return part.place.buffer == nullptr || part.bytes == 0; });
  for (size_t p = 0; p < parts.size(); ++p) {
    for (size_t q = 0; q < p && parts[p].is_extra; ++q) {
      check.Expect(!(parts[p].is_written || parts[q].is_written) ||
                       !Overlap(parts[p].place, parts[p].bytes, parts[q].place, parts[q].bytes),
                   kernel.op, ": ", parts[p].role, " overlaps ", parts[q].role);
    }
  }
  for (const auto& [bound, other] : bindings_.live()) {
    if (other.record.device != device) continue;
    for (const Reserved& theirs : other.record.reserved) {
      for (const Part& part : parts) {
        if (theirs.is_read && !part.is_written) continue;
        check.Expect(!Overlap(part.place, part.bytes, theirs.place, theirs.bytes), kernel.op, ": ", part.role,
                     " overlaps ", theirs.role, " of ", bindings_.Describe(bound));
      }
    }
  }
  return {{"persistent", binding.persistent, kernel.persistent_bytes, false},
          {"constants", binding.constants, kernel.constant_bytes, true}};
}

sy_status Validate::Around(Call<&sy_kernel_v2::bind> call, sy_device* device, sy_kernel* kernel,
                           const sy_binding* given, sy_bound** bound, sy_launch* launch, sy_error* error) {
  Checked check(*this, "bind");
  const auto* owner = check.Live(devices_, device);
  auto* entry = check.LiveOn(kernels_, kernel, device);
  check.Expect(given != nullptr && bound != nullptr && launch != nullptr, "an argument is NULL");
  if (!check.good()) return check.Refuse(error);
  const auto record = Find(kernel);
  const sy_binding binding = ReadStruct(given);
  const uint64_t alignment = owner->record.alignment;
  std::vector<Named> used;
  const auto look = [&](const std::string& role, const sy_place& place, uint64_t bytes, bool needed) {
    if (bytes == 0 || (place.buffer == nullptr && !needed)) return;
    check.Expect(place.buffer != nullptr, record->op, ", ", role, ": expected device memory for ", bytes, " bytes");
    CheckPlace(check, role.c_str(), device, place, bytes);
    check.Expect(place.offset % alignment == 0, record->op, ", ", role, ": offset ", place.offset,
                 " is no multiple of the device's alignment, ", alignment);
    const auto* buffer = place.buffer == nullptr ? nullptr : buffers_.Find(place.buffer);
    if (buffer == nullptr) return;
    check.Expect(!buffer->record.imported, record->op, ", ", role, ": ", buffers_.Describe(place.buffer),
                 " was imported: it is for copy and fill only");
    used.push_back(NameOf(buffers_, place.buffer));
  };
  for (size_t i = 0; i < record->inputs.size(); ++i)
    look(Text("input ", i), binding.inputs[i], Extent(record->inputs[i]), true);
  for (size_t o = 0; o < record->outputs.size(); ++o)
    look(Text("output ", o), binding.outputs[o], Extent(record->outputs[o]), true);
  look("workspace", binding.workspace, record->workspace_bytes, true);
  look("persistent", binding.persistent, record->persistent_bytes, true);
  look("constants", binding.constants, record->constant_bytes, true);
  look("residual", binding.residual, record->residual_bytes, false);
  for (size_t o = 0; check.good() && o < record->outputs.size(); ++o) {
    const auto shares = [&](const sy_place& place, uint64_t bytes) {
      return Overlap(binding.outputs[o], Extent(record->outputs[o]), place, bytes);
    };
    for (size_t i = 0; i < record->inputs.size(); ++i) {
      const bool inplace = o < entry->record.inplace.size() && entry->record.inplace[o] == static_cast<int32_t>(i) &&
                           binding.inputs[i].offset == binding.outputs[o].offset;
      check.Expect(inplace || !shares(binding.inputs[i], Extent(record->inputs[i])), record->op, ": output ", o,
                   " overlaps input ", i, ", which the kernel does not allow");
    }
    for (size_t p = 0; p < o; ++p) {
      check.Expect(!shares(binding.outputs[p], Extent(record->outputs[p])), record->op, ": outputs ", p, " and ", o,
                   " overlap");
    }
  }
  std::vector<Reserved> reserved = check.good() ? CheckParts(check, device, *record, binding) : std::vector<Reserved>{};
  if (!check.good()) return check.Refuse(error);
  ++entry->record.bindings;
  CountBinding(used, 1);
  check.Leave();
  BindingState state;
  state.device = device;
  state.kernel = kernel;
  state.reserved = std::move(reserved);
  state.constants_written = record->constant_bytes == 0;
  state.constants = {binding.constants.buffer, NameOf(buffers_, binding.constants.buffer).id, binding.constants.offset};
  const sy_status status = Forward(call, device, kernel, given, bound, launch, error);
  check.Return();
  if (status == SY_OK) {
    Make(*bound, this);
    auto& added = bindings_.Add(*bound, std::move(state), check.Here(" of ", record->op));
    added.record.names = Naming(std::move(used));
  } else {
    CountBinding(used, -1);
    if (entry = kernels_.Find(kernel); entry != nullptr) --entry->record.bindings;
  }
  return status;
}

void Validate::Around(Call<&sy_kernel_v2::unbind> call, sy_device* device, sy_bound* bound) {
  Checked check(*this, "unbind", kNoStatus);
  check.Live(devices_, device);
  const auto* entry = check.LiveOn(bindings_, bound, device);
  if (entry != nullptr) {
    check.Live(kernels_, entry->record.kernel);  // which may not be released meanwhile
    check.Expect(entry->record.running == 0, bindings_.Describe(bound),
                 " is being launched in another thread at the same time; expected one call after the other");
    CheckIdle(check, bindings_, bound);
  }
  if (!check.good()) return check.Report();
  if (auto* const kernel = kernels_.Find(entry->record.kernel)) --kernel->record.bindings;
  CountBinding(*entry->record.names, -1);
  bindings_.Remove(bound, check.Here());
  check.Leave();
  Forward(call, device, bound);
}

}  // namespace switchyard
