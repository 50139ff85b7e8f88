#!/usr/bin/env bash
# Chains of steps of gpu_session.sh in the background, one for each GPU of a host, with sixteen cores each: a command that
# borrows the host may end before them. Prepared as gpu_session.sh wants it. Results and each chain's log.txt lie in
# /tmp/out/NAME.
#
#   gpu_chains.sh train   TileSpec's pair, on GPU 1 if there is one, beside tests, of two ranks if there are two GPUs: none
#                         needs FlashAttention 3, and all may start before the rest
#   gpu_chains.sh one     then, once all is unpacked, on one GPU: TileSpec beside every fixed setting, greedy
#   gpu_chains.sh two     then, once all is unpacked, on two GPUs: the same on the first, and where tokens are sampled, with
#                         rejection sampling, on the second
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

train() {
  local last=0
  if [[ $(nvidia-smi -L | wc -l) -gt 1 ]]; then
    last=1
    PAIR=0,1 SUITES=ranks-experts SUITE_SECONDS=400 chain ranks 0 8-15 pair found
  fi
  chain train "$last" "$((16 * last))-$((16 * last + 15))" tile_train
  devices=0 SUITES=triton-eagle3 SUITE_SECONDS=400 chain tests 0 0-7 tests found
}

greedy() { # trained after 440 s, servers up 690; 21 loads of seven settings 1,400 (reckoned), then the closest again
  SETTINGS="$rivals tile" TILE_TEMPERATURES=0 TILE_SECONDS=${TILE_SECONDS:-850} \
    chain figures-0 0 0-15 tile_wait tile_up tile_run tile_close tile_down tile_times
}

export TRACE=1 TILE_ROUNDS=1 TILE_CLIENTS=${TILE_CLIENTS:-32 16 64 128 8 1 4}

one() { greedy; }

two() { # 21 loads that sample take 900 s
  greedy
  SETTINGS="$rivals tile-rejecting" TILE_TEMPERATURES=0.8 TILE_SECONDS=${TILE_SECONDS:-950} \
    chain figures-1 1 16-31 tile_wait tile_up tile_run tile_rest tile_down
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
