#!/usr/bin/env bash
# Serves on one Intel GPU, on 127.0.0.1:30000. Further flags are SGLang's.
#
#   bash launch/serve_xpu.sh --model-path Qwen2.5-32B-Instruct --speculative-draft DRAFTER \
#       --speculative-num-steps 6 --mem-fraction-static 0.88
#
# It needs PyTorch for XPU (from PyTorch's own index) and SGLang's kernels for XPU built from source;
# docs/support-matrix.md says what of this was run.
here="$(dirname "${BASH_SOURCE[0]}")"
source "$here/setup.sh" bench
exec dflash2 serve --device xpu "$@"
