#!/usr/bin/env bash
# Sourced by the other scripts: makes a virtual environment beside the checkout once, installs the
# package with the extras named as arguments, and puts the environment first on the path.
#
#   source launch/setup.sh dev
#
# PYTHON names another interpreter (3.11 or newer), DFLASH2_VENV another place for the environment.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${DFLASH2_VENV:-$root/.venv}"
python="${PYTHON:-python3}"

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "dflash-sglang needs Python 3.11 or newer, $python is $("$python" --version)." >&2
  echo "Name another interpreter: PYTHON=python3.11 bash $0" >&2
  exit 1
fi
if ! command -v g++ >/dev/null; then
  echo "dflash-sglang compiles its CPU kernels with g++, which is not on the path." >&2
  exit 1
fi

extras="$(IFS=,; echo "${*:-}")"
wanted="$(cat "$root/pyproject.toml") $extras"
if [ "$(cat "$venv/.installed" 2>/dev/null)" != "$wanted" ]; then
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  echo "Installing dflash-sglang and SGLang into $venv (some minutes, about 11 GB) ..."
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --editable "$root${extras:+[$extras]}"
  printf '%s' "$wanted" >"$venv/.installed"
fi
export PATH="$venv/bin:$PATH"
