"""What computes the ops where plain PyTorch does not: native kernels, CUDA, Triton's launches, library products."""
