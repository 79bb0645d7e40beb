#include "backends/cpu/vector/kernels.h"

#define SY_TEXT_OF(name) #name
#define SY_TEXT(name) SY_TEXT_OF(name)

namespace switchyard::SY_ISA {

extern const VectorKernels kTable;
const VectorKernels kTable = {SY_TEXT(SY_ISA),
#define SY_VECTOR_KERNEL(result, name, arguments) name,
                              SY_VECTOR_KERNELS(SY_VECTOR_KERNEL)
#undef SY_VECTOR_KERNEL
};

}  // namespace switchyard::SY_ISA
