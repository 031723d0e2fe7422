#!/usr/bin/env bash
# Serves with the target split over several devices, the drafter whole on each of them.
#
#   bash launch/serve_tp.sh 2 --model-path TARGET --speculative-draft DRAFTER
here="$(dirname "${BASH_SOURCE[0]}")"
if ! [[ "${1:-}" =~ ^[0-9]+$ ]]; then
  echo "The first argument is the number of devices: expected a number, got '${1:-nothing}'." >&2
  exit 1
fi
ranks="$1"
shift
source "$here/setup.sh" bench
exec dflash2 serve --tp "$ranks" "$@"
