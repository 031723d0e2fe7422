#!/usr/bin/env bash
# The CPU kernels' tests under the address and undefined-behaviour sanitizers (g++ only).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/setup.sh dev

export DFLASH2_CXX_FLAGS="-O1 -g -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all"
# Python and PyTorch are not built with the sanitizers, so their runtime has to be there first, and
# what Python leaves behind at exit is no leak of ours. A report ends the process: hence -s.
ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" \
    python -m pytest -q -s tests/kernels --ignore=tests/kernels/test_build.py --ignore=tests/kernels/test_device.py
