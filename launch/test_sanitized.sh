#!/usr/bin/env bash
# The CPU kernels' tests under the address and undefined-behaviour sanitizers (g++ only), each
# property on fewer random cases: every case is slow here, and the tests proper try the others.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/setup.sh dev

export DFLASH2_CXX_FLAGS="-O1 -g1 -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all"
export DFLASH2_TEST_SHARE=8
# Python and PyTorch are not built with the sanitizers, so their runtime has to be there first, and
# what Python leaves behind at exit is no leak of ours. A report ends the process: hence -s.
exec env ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" \
    python -m pytest -q -s tests/kernels -p no:cacheprovider \
    --ignore=tests/kernels/test_build.py --ignore=tests/kernels/test_device.py
