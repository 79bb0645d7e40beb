#if defined(__AMX_BF16__)
#include "backends/cpu/vector/tile_check.h"

namespace switchyard::SY_ISA {

bool tiles_multiply();
bool tiles_multiply() { return AgreesWithEmulation<AmxTiles>(); }

}  // namespace switchyard::SY_ISA
#endif
