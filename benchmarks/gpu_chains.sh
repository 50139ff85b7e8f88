#!/usr/bin/env bash
# Chains of steps of gpu_session.sh in the background, one for each GPU of a host, with sixteen cores each: a command that
# borrows the host may end before them. Prepared as gpu_session.sh wants it. Results and each chain's log.txt lie in
# /tmp/out/NAME.
#
#   gpu_chains.sh train   TileSpec's pair, on GPU 1 if there is one, else beside tests of two ranks: neither needs
#                         FlashAttention 3, and both may start before the rest
#   gpu_chains.sh one     then, once all is unpacked, on one GPU: a first start and a later one, TileSpec beside every
#                         fixed setting
#   gpu_chains.sh two     then, once all is unpacked, on two GPUs: tests while the pair is trained, some on both; a step
#                         of a mixture of experts; TileSpec beside every fixed setting, half of the loads on each, a
#                         useless draft, rejection sampling
#   gpu_chains.sh chain NAME GPU CORES STEP...    one chain of any steps
#   gpu_chains.sh look    wait LOOK_SECONDS, show how far they are, pack what there is into $OUT
#
# A borrowed host goes back when nothing runs on it for 30 s. So send the commands at once, three looks of 500 s with them.
set -uo pipefail
cd "$(dirname "$0")/.."

chain() { # NAME GPU CORES STEP...
  local name=$1 gpu=$2 cores=$3
  mkdir -p "/tmp/out/$name"
  CUDA_VISIBLE_DEVICES=$gpu OUT=/tmp/out/$name TILE_SECONDS=${TILE_SECONDS:-780} SECONDS_EACH=560 setsid taskset -c "$cores" \
    bash benchmarks/gpu_session.sh "${@:4}" >"/tmp/out/$name/log.txt" 2>&1 </dev/null &
}

train() {
  if [[ $(nvidia-smi -L | wc -l) -gt 1 ]]; then
    chain train 1 16-31 tile_train
  else
    chain train 0 0-15 tile_train
    PAIR=0 SUITES="ranks-experts ranks-tilespec" SUITE_SECONDS=560 chain tests 0 0-15 pair found
  fi
}

seven="none k1 k2 k3 k5 k7 tile"

one() { # reckoned: trained 400 s, tests through 550, a first start 640, servers up 980, 16 loads of seven settings 700 more
  SETTINGS=$seven TRACE=1 TILE_ROUNDS=1 TILE_SECONDS=${TILE_SECONDS:-700} TILE_CLIENTS=${TILE_CLIENTS:-4 16 8 32 1 64 128} \
    chain figures 0 0-15 tile_wait tests_wait tile_again tile_up tile_run tile_down
}

two() {
  devices=0 SUITES="fa3-standalone fa3-eagle fa3-eagle3 sampled-fa3 sampled-triton sampled-rejecting trees-fa3 trees-triton
    ranks-experts ranks-tilespec" SUITE_SECONDS=${SUITE_SECONDS:-300} chain tests 0 0-23 tests pair found
  SETTINGS="$seven tile-useless" TILE_ONLY=$seven TILE_CLIENTS="4 16 1" TILE_ROUNDS=1 TILE_SECONDS=${TILE_SECONDS:-650} \
    chain figures 0 0-15 tests_wait moe_decode tile_wait tile_up tile_run tile_useless tile_down tile_reject
  SETTINGS=$seven TILE_CLIENTS="8 32 64 128" TRACE=1 TILE_ROUNDS=1 TILE_SECONDS=1200 \
    chain tilespec 1 16-31 tile_wait tile_up tile_run tile_down
}

look() {
  pack # who waits may be ended
  sleep "${LOOK_SECONDS:-1}"
  local log
  for log in /tmp/out/*/log.txt; do
    echo "--- $log"
    tail -c 20000 "$log" | tr '\r' '\n' | cut -c 1-300 | tail -n "${LOOK_LINES:-10}"
  done
  pack
}

pack() { # results, and what servers that still run have written
  local folder file
  for folder in /tmp/tilespec-bench-*/; do # what servers that still run have written
    for file in "$folder"*.log "$folder"*.trace.jsonl; do
      [[ ! -e $file ]] || { mkdir -p "/tmp/out/live$folder" && xz -1 -T8 -c "$file" >"/tmp/out/live$file.xz"; }
    done
  done
  tar -C /tmp -cJf /tmp/out.tar.xz --exclude='*-responses.jsonl' --exclude='*.npy' --exclude='*-claims.json' out
  mv /tmp/out.tar.xz "$OUT" # tar's status is 1 where a file has grown meanwhile
}

"$@"
