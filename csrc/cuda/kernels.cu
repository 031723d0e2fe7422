// All kernels as one fat binary; kernels/cuda.py loads and launches them.

// clang-format off: the prelude says what a kernel is
#include "prelude.cuh"
#include "../device/entry_points.h"
