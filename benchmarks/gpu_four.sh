#!/usr/bin/env bash
# All figures and tests of a GPU in half an hour: four GPUs of one host, each with a chain of steps of gpu_session.sh and
# with cores of its own, in the background: a command that borrows the host may end before them. Prepared as
# gpu_session.sh wants it. Results and each chain's log.txt in /tmp/out/NAME.
#
#   gpu_four.sh train     TileSpec's pair on GPU 2; it needs no FlashAttention 3 and may start before the rest
#   gpu_four.sh measure   the others, once all is unpacked
#   gpu_four.sh look      wait LOOK_SECONDS, show how far they are, pack what there is into $OUT
set -uo pipefail
cd "$(dirname "$0")/.."

chain() { # NAME GPU CORES STEP...
  local name=$1 gpu=$2 cores=$3
  mkdir -p "/tmp/out/$name"
  CUDA_VISIBLE_DEVICES=$gpu OUT=/tmp/out/$name setsid taskset -c "$cores" \
    bash benchmarks/gpu_session.sh "${@:4}" >"/tmp/out/$name/log.txt" 2>&1 </dev/null &
}

train() { chain train 2 32-47 tile_train; }

measure() {
  ROUNDS=5 chain figures 0 0-15 up small embeddings toploc down up_injection injection down huggingface
  SUITES="pair kernels fingerprints exact tilespec-triton tilespec-fa3 moe embeddings-fa3" SECONDS_EACH=450 \
    devices=1 PAIR=1,2 SETTINGS="none k1 k3 tile" TILE_SECONDS=1200 \
    chain tile-a 1 16-47 pair tests more_tests calibrate found tile_wait tile_up tile_run
  SETTINGS="k2 k5 k7 tile" TILE_SECONDS=1200 chain tile-b 2 32-47 tile_wait tile_up tile_run
  SECONDS_EACH=560 chain moe 3 48-63 moe tiny_moe moe_steps fp8
}

look() {
  sleep "${LOOK_SECONDS:-1}"
  local log
  for log in /tmp/out/*/log.txt; do
    echo "--- $log"
    tail -c 20000 "$log" | tr '\r' '\n' | cut -c 1-300 | tail -n "${LOOK_LINES:-10}"
  done
  tar -C /tmp -cJf "$OUT/out.tar.xz" --exclude='*.trace.jsonl' --exclude='toploc-responses.jsonl' out
}

"$1"
