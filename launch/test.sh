#!/usr/bin/env bash
# Installs what the tests need and runs them; arguments go to pytest.
#
#   bash launch/test.sh                 everything that this machine can run
#   bash launch/test.sh tests/unit      what needs no server, in some minutes
here="$(dirname "${BASH_SOURCE[0]}")"
source "$here/setup.sh" dev
# The reference implementation that the drafter is compared with. Its pinned dependencies contradict
# SGLang's, so it comes without them.
python -c 'import dflash' 2>/dev/null || python -m pip install --quiet --no-deps dflash==0.1.0
cd "$root"
exec python -m pytest "$@"
