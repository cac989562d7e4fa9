// The kernels for any processor: what every x86-64 or Arm one has, in vectors of 128 bits.

#define DECOMPX_LEVEL portable
#define DECOMPX_FLOATS 4
#include "rows_impl.h"
