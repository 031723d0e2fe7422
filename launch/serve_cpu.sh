#!/usr/bin/env bash
# Serves on CPU cores; without arguments the demo pair, on 127.0.0.1:30000. Further flags are SGLang's.
#
#   bash launch/serve_cpu.sh --model-path TARGET --speculative-draft DRAFTER
here="$(dirname "${BASH_SOURCE[0]}")"
source "$here/setup.sh" bench
pair="$root/dflash_sglang/demo/pair"
[ $# -gt 0 ] || set -- --model-path "$pair/target" --speculative-draft "$pair/drafter"
exec dflash2 serve --device cpu --sleep-on-idle "$@"
