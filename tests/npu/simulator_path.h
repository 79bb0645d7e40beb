// Where the build puts the NPU simulator, for SWITCHYARD_NPU_RUNTIME.
#pragma once

#include <filesystem>
#include <string>

namespace switchyard {

inline std::string SimulatorPath() {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return (program / ".." / "lib" / "switchyard" / "simulators" / "libswitchyard_npu_simulator.so").lexically_normal();
}

}  // namespace switchyard
