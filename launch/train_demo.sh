#!/usr/bin/env bash
# Makes the demo pair again from nothing: corpus and tokenizer, target, the target's own text, drafter,
# evaluation. Every step goes on where it was interrupted. Seeds are fixed.
#
#   bash launch/train_demo.sh [FOLDER]      FOLDER: work folder, default ./demo-pair
here="$(dirname "${BASH_SOURCE[0]}")"
source "$here/setup.sh" train
work="${1:-demo-pair}"
target="$work/target/final"
mkdir -p "$work"

resume() { if [ -e "$1" ]; then echo "--resume"; fi; }

[ -e "$target/config.json" ] || python -m dflash_sglang.demo.target --out "$work/target" \
  --steps 3000 --batch 4 $(resume "$work/target/checkpoint.safetensors")

python -m dflash_sglang.demo.prompts --out "$work/prompts.jsonl" --count 6000 --seed 1
python -m dflash_sglang.demo.prompts --out "$work/held-out.jsonl" --count 48 --split held-out
dflash2 capture --target "$target" --prompts "$work/prompts.jsonl" --out "$work/capture" \
  --temperatures 0,1 --batch-size 256 --shard-size 1000 --seed 1
dflash2 capture --target "$target" --prompts "$work/held-out.jsonl" --out "$work/held-out" \
  --temperatures 0 --max-new-tokens 128

dflash2 train --target "$target" --data "$work/capture" --held-out "$work/held-out" \
  --held-out-samples 48 --out "$work/drafter" --layers 2 --steps 600 --anchors 32 --seed 1 \
  $(resume "$work/drafter/state.safetensors")
dflash2 evaluate --drafter "$work/drafter/step-000600" --target "$target" \
  --prompts "$work/held-out.jsonl" --json "$work/evaluation.json"
