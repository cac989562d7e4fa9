// What a launch may use, and what the codes that launchers return mean.
#include "device.cuh"

extern "C" const char* decompx_status_text(int status) {
    switch (status) {
        case DECOMPX_OK: return "nothing is wrong";
        case DECOMPX_BAD_DTYPE: return "no kernel for this dtype";
        case DECOMPX_TOO_LARGE: return "the result has more tiles than a launch can have blocks";
        default: return runtime_error_text(status);
    }
}

#ifndef DECOMPX_EMULATED

// The limits of the current device.
extern "C" int decompx_current_device(DecompxDevice* limits) {
    int device = 0, major = 0;
    cudaError_t status = cudaGetDevice(&device);
    auto read = [&](int* to, cudaDeviceAttr attribute) {
        if (status == cudaSuccess) status = cudaDeviceGetAttribute(to, attribute, device);
    };
    read(&limits->multiprocessors, cudaDevAttrMultiProcessorCount);
    read(&limits->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    read(&major, cudaDevAttrComputeCapabilityMajor);
    limits->clusters = major >= 9;
    return status;
}

#endif
