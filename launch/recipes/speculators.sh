#!/usr/bin/env bash
# The demo drafter trained by speculators 0.9.0: same target, text, sizes, steps, blocks a step,
# learning rate and schedule as ours; then measured by the same command.
#
#   bash launch/recipes/speculators.sh [FOLDER] [STEPS]   FOLDER: where launch/train_demo.sh worked
here="$(dirname "${BASH_SOURCE[0]}")"
source "$here/../setup.sh" train
source "$here/needs.sh"
work="${1:-demo-pair}"
steps="${2:-600}"
out="$work/speculators"
need_demo_pair "$work"

# Beside the environment, not in it: speculators pins torchaudio and torchvision, which it does not
# use for text.
[ -d "$out/packages" ] || python -m pip install --quiet --no-deps --target "$out/packages" \
  speculators==0.9.0 hs-connectors==0.9.0 loguru pydantic-settings

[ -e "$out/drafter/config.json" ] || PYTHONPATH="$out/packages" python \
  "$here/speculators_train.py" --target "$work/target/final" --data "$work/capture" \
  --out "$out/drafter" --steps "$steps"
dflash2 evaluate --drafter "$out/drafter" --target "$work/target/final" \
  --prompts "$work/held-out.jsonl" --json "$out/evaluation.json"
