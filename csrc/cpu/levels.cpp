// Which instruction sets there are, and their kernels.

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
