#!/usr/bin/env bash
# Chains of steps of gpu_session.sh in the background, one for each GPU of a host, with sixteen cores each: a command that
# borrows the host may end before them. Prepared as gpu_session.sh wants it. Results and each chain's log.txt lie in
# /tmp/out/NAME.
#
#   gpu_chains.sh train   TileSpec's pair, on GPU 1 if there is one, beside tests of two ranks, on both GPUs or on the one:
#                         neither needs FlashAttention 3, and both may start before the rest
#   gpu_chains.sh one     then, once all is unpacked, on one GPU: TileSpec beside every fixed setting, a later start
#   gpu_chains.sh two     then, once all is unpacked, on two GPUs: tests and a step of a mixture of experts while the pair
#                         is trained; TileSpec beside every fixed setting, half of the clients on each; a later start
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

export PARTS=${PARTS:-target eagle3} ALGORITHM=${ALGORITHM:-EAGLE3}
rivals="none k1 k2 k3 k5 k7"
sampling=tile-rejecting

train() {
  devices=0 SUITES=sampled-few SUITE_SECONDS=300 chain tests 0 0-11 tests found
  if [[ $(nvidia-smi -L | wc -l) -gt 1 ]]; then
    chain train 1 16-31 tile_train
    PAIR=0,1 SUITES="ranks-experts ranks-tilespec" SUITE_SECONDS=300 chain ranks 0 0-11 pair found
    LAYERS=24 chain experts 0 12-15 moe_made
  else
    chain train 0 0-15 tile_train
    PAIR=0 SUITES="ranks-experts ranks-tilespec" SUITE_SECONDS=560 chain ranks 0 0-15 pair found
  fi
}

one() { # reckoned: trained 400 s, servers up 700, 17 loads of seven settings 1,600
  SETTINGS="$rivals $sampling" AGAIN=$sampling TRACE=1 TILE_ROUNDS=1 TILE_SECONDS=${TILE_SECONDS:-900} \
    TILE_CLIENTS=${TILE_CLIENTS:-1 64 4 128 16 8 32} chain figures 0 0-15 tile_wait tile_up tile_run tile_down tile_again
}

two() { # reckoned: the same, and 38 loads; greedy ones on GPU 0, others on GPU 1
  export TRACE=1 TILE_ROUNDS=1 TILE_CLIENTS=${TILE_CLIENTS:-16 4 64 1 128 8 32}
  SETTINGS="$rivals tile" TILE_TEMPERATURES=0 TILE_SECONDS=1000 LAYERS=24 DECODING="stock stock rows-injecting" \
    chain figures-0 0 0-15 tests_wait tile_times moe_decode moe_gone tile_wait tile_up tile_run tile_down
  SETTINGS="$rivals $sampling" AGAIN=$sampling TILE_TEMPERATURES=0.8 TILE_SECONDS=900 \
    chain figures-1 1 16-31 tile_wait tile_up tile_run tile_rest tile_down tile_again
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
