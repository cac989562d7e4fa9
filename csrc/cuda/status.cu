// What the codes that launchers return mean.
#include "device.cuh"

extern "C" const char* decompx_status_text(int status) {
    switch (status) {
        case DECOMPX_OK: return "nothing is wrong";
        case DECOMPX_BAD_DTYPE: return "no kernel for this dtype";
        case DECOMPX_TOO_LARGE: return "the result has more tiles than a launch can have blocks";
        default: return runtime_error_text(status);
    }
}
