#include "backends/cpu/amx.h"

#if defined(SY_X86_64)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace switchyard {
namespace amx {
bool tiles_multiply();
}
namespace {

constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, and the component in XCR0

bool HasTiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (kBf16 | kTiles)) != (kBf16 | kTiles)) return false;
  // Palette 1: bytes of a row, number of tiles, number of rows.
  return __get_cpuid_count(0x1D, 1, &a, &b, &c, &d) && (b & 0xFFFF) >= 64 && b >> 16 >= 8 && (c & 0xFFFF) >= 16;
}

bool SavesTiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kBoth = 3u << 17;  // configuration and data
  return (low & kBoth) == kBoth;
}

int RequestTiles() { return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? 0 : errno; }

}  // namespace

const AmxMachine kAmxMachine = {HasTiles, SavesTiles, RequestTiles, amx::tiles_multiply};

std::optional<std::string> TilesRefusal(const AmxMachine& machine) {
  if (!machine.has_tiles()) return "";
  if (!machine.saves_tiles()) return "the operating system does not keep them (XCR0)";
  if (const int error = machine.request()) return std::string("the kernel refuses them: ") + std::strerror(error);
  if (!machine.tiles_multiply()) return "a product on them came out wrong";
  return std::nullopt;
}

}  // namespace switchyard
#endif
