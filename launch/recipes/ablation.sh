#!/usr/bin/env bash
# What each part of the drafter adds: six drafters for the demo target, same data, steps and seed.
# Goes on where it was interrupted, and ends with a table.
#
#   bash launch/recipes/ablation.sh [FOLDER] [STEPS]   FOLDER: where launch/train_demo.sh worked
here="$(dirname "${BASH_SOURCE[0]}")"
source "$here/../setup.sh" train
source "$here/needs.sh"
work="${1:-demo-pair}"
steps="${2:-600}"
target="$work/target/final"
step="step-$(printf %06d "$steps")"

need_demo_pair "$work"

# name, then what sets it apart
variants=(
  "plain|--conv none --selector-rank 0"
  "static3|--conv static3 --selector-rank 0"
  "static5|--conv static5 --selector-rank 0"
  "dynamic|--conv dynamic --selector-rank 0"
  "selector|--conv none"
  "both|--conv dynamic"
)
for variant in "${variants[@]}"; do
  name="${variant%%|*}"
  out="$work/ablation/$name"
  state="$out/state.safetensors"
  if [ ! -e "$out/$step/config.json" ]; then
    # shellcheck disable=SC2086  # the options are words
    dflash2 train --target "$target" --data "$work/capture" --held-out "$work/held-out" \
      --held-out-samples 48 --out "$out" --layers 2 --steps "$steps" --anchors 32 --seed 1 \
      --evaluate-every 200 --save-every 200 ${variant#*|} $([ -e "$state" ] && echo --resume)
  fi
  [ -e "$out/evaluation.json" ] || dflash2 evaluate --drafter "$out/$step" --target "$target" \
    --prompts "$work/held-out.jsonl" --json "$out/evaluation.json"
done

python - "$work/ablation" "${variants[@]%%|*}" <<'TABLE'
import json, sys
from pathlib import Path

folder, *names = sys.argv[1:]
rows = {
    name: {
        mode["name"]: mode["accept_length"]
        for mode in json.loads((Path(folder) / name / "evaluation.json").read_text())["modes"]
    }
    for name in names
}
modes = list(next(iter(rows.values())))
print("| drafter |", " | ".join(modes), "|")
print("| --- |", " | ".join("---" for _ in modes), "|")
for name, row in rows.items():
    print(f"| {name} |", " | ".join(f"{row[mode]:.2f}" for mode in modes), "|")
TABLE
