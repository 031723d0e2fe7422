#!/usr/bin/env bash
# From a fresh checkout to a served demo pair: installs, starts SGLang without and with dflash2, asks
# both the same questions and compares the tokens. Exit code 0 only if they are identical.
#
#   bash launch/demo.sh [--json FILE]
here="$(dirname "${BASH_SOURCE[0]}")"
source "$here/setup.sh" bench
exec dflash2 demo "$@"
