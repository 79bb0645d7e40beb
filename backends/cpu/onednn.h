// oneDNN's names for what the ABI names.
#pragma once

#include <dnnl.hpp>

#include "core/abi/base.h"

namespace switchyard {

// f32 or bf16.
inline dnnl::memory::data_type OneDnnType(sy_dtype dtype) {
  return dtype == SY_F32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

}  // namespace switchyard
