#!/usr/bin/env bash
# Serves on one CUDA device, on 127.0.0.1:30000. Further flags are SGLang's.
#
#   bash launch/serve_cuda.sh --model-path Qwen/Qwen3-4B --speculative-draft z-lab/Qwen3-4B-DFlash2
here="$(dirname "${BASH_SOURCE[0]}")"
source "$here/setup.sh" bench
exec dflash2 serve --device cuda "$@"
