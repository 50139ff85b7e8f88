#!/usr/bin/env bash
# Chains of steps of gpu_session.sh in the background, on two GPUs of one host, with sixteen cores each: a command that
# borrows the host may end before them. Prepared as gpu_session.sh wants it. Results and each chain's log.txt lie in
# /tmp/out/NAME. Four GPUs at once were too much for the host: what is bound by the processor took twice the time.
#
#   gpu_two.sh train     TileSpec's pair on GPU 1; it needs no FlashAttention 3 and may start before the rest
#   gpu_two.sh measure   the others, once all is unpacked
#   gpu_two.sh look      wait LOOK_SECONDS, show how far they are, pack what there is into $OUT
set -uo pipefail
cd "$(dirname "$0")/.."

chain() { # NAME GPU CORES STEP...
  local name=$1 gpu=$2 cores=$3
  mkdir -p "/tmp/out/$name"
  CUDA_VISIBLE_DEVICES=$gpu OUT=/tmp/out/$name setsid taskset -c "$cores" \
    bash benchmarks/gpu_session.sh "${@:4}" >"/tmp/out/$name/log.txt" 2>&1 </dev/null &
}

train() { chain train 1 16-31 tile_train; }

measure() {
  ROUNDS=3 chain figures 0 0-15 up embeddings toploc down huggingface up_injection injection down
  SETTINGS="none k3 tile" KINDS="mixed" TILE_SECONDS=600 devices=1 SUITES="tilespec-fa3 tilespec-triton" \
    chain tilespec 1 16-31 tile_wait tile_up tile_run tile_down tests found
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
