# Sourced by the recipes that go on from what launch/train_demo.sh leaves.
#
#   need_demo_pair FOLDER    ends the recipe if FOLDER lacks a part of it
need_demo_pair() {
  local needed
  for needed in target/final/config.json capture held-out held-out.jsonl; do
    [ -e "$1/$needed" ] && continue
    echo "Expected what launch/train_demo.sh makes in $1, but $1/$needed is missing." \
      "Run it first:" >&2
    echo "  bash launch/train_demo.sh $1" >&2
    exit 1
  done
}
