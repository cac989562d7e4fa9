// Which instruction sets there are, and their kernels.

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "rows.h"

namespace decompx {

namespace portable {
extern const Kernels table;
}

#if defined(__x86_64__)

namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
namespace avx512_bf16 {
extern const Kernels table;
}
namespace amx {
extern const Kernels table;
}

namespace {

// Whether the processor has tiles of bfloat16, and Linux lets this process use them: their registers are large, and it
// keeps room for them only for who asks.
bool has_tiles() {
#if defined(DECOMPX_LOWERED)
  return true;
#elif defined(__linux__)
  constexpr unsigned kTiles = 1u << 24, kBfloat16 = 1u << 22;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kTiles) == 0 || (d & kBfloat16) == 0) return false;
  constexpr long kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

}  // namespace

bool available(Level level) {
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#if defined(DECOMPX_LOWERED)
  const bool has_avx512 = has_avx2, has_pairs = has_avx2;
#else
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool has_pairs = has_avx512 && __builtin_cpu_supports("avx512bf16");
#endif
  switch (level) {
    case Level::amx:
      return has_pairs && has_tiles();
    case Level::avx512_bf16:
      return has_pairs;
    case Level::avx512:
      return has_avx512;
    case Level::avx2:
      return has_avx2;
    default:
      return level == Level::portable;
  }
}

const Kernels& kernels(Level level) {
  switch (level) {
    case Level::amx:
      return amx::table;
    case Level::avx512_bf16:
      return avx512_bf16::table;
    case Level::avx512:
      return avx512::table;
    case Level::avx2:
      return avx2::table;
    default:
      return portable::table;
  }
}

#else

bool available(Level level) {
  return level == Level::portable;
}

const Kernels& kernels(Level) {
  return portable::table;
}

#endif

}  // namespace decompx
