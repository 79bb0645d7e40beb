// oneDNN's names for what the ABI names.
#pragma once

#include <cstring>
#include <dnnl.hpp>

#include "core/abi/base.h"

namespace switchyard {

// f32 or bf16.
inline dnnl::memory::data_type OneDnnType(sy_dtype dtype) {
  return dtype == SY_F32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

// oneDNN lists its reference code last, which is slower than ours.
template <typename Description>
bool IsReference(const Description& description) {
  return std::strstr(description.impl_info_str(), "ref") != nullptr;
}
template <typename Description>
void RefuseReference(const Description& description) {
  if (IsReference(description)) throw dnnl::error(dnnl_unimplemented, "has only its reference implementation");
}

}  // namespace switchyard
