#!/usr/bin/env bash
# The CUDA kernels: compiled for every architecture, a warning being an error; then, on a machine
# with a card, checked against the references and timed. Without a card it says that there is none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/setup.sh dev

python -c '
from dflash_sglang.kernels import cuda
print("compiled for sm", *cuda.ARCHITECTURES, "into", cuda.build_module(cuda.ARCHITECTURES))'
dflash2 kernels list
dflash2 kernels check
python -m pytest -q tests/kernels/test_device.py -k cuda
dflash2 kernels bench --vocabulary 151936
