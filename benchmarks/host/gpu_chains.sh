#!/usr/bin/env bash
# Chains of steps of gpu_session.sh in the background: a command that borrows the host may end before them. Prepared as
# gpu_session.sh wants it. Results and each chain's log.txt lie in /tmp/out/NAME.
#
#   gpu_chains.sh train   TileSpec's pair, beside one suite of tests: neither needs FlashAttention 3, and both may start
#                         before the rest
#   gpu_chains.sh one     then, once all is unpacked, on one GPU: more suites beside the training, BESIDE, which take half a
#                         minute from it; TileSpec beside every fixed setting, greedy and, with rejection sampling, where
#                         tokens are sampled; and at the end, where it may be lost, what a step costs the scheduler's
#                         thread of a host that has nothing else to do
#   gpu_chains.sh launches    in the place of both: what a step costs the scheduler's thread, a draft that is never right,
#                         a later start; models are drawn for these
#   gpu_chains.sh chain NAME GPU CORES STEP...    one chain of any steps
#   gpu_chains.sh look    wait LOOK_SECONDS, show how far they are, pack what there is into $OUT
#
# A borrowed host goes back when nothing runs on it for 30 s. So send the commands at once, three looks of 500 s with them.
set -uo pipefail
cd "$(dirname "$0")/../.."

chain() { # NAME GPU CORES STEP...
  local name=$1 gpu=$2 cores=$3
  mkdir -p "/tmp/out/$name"
  CUDA_VISIBLE_DEVICES=$gpu OUT=/tmp/out/$name SECONDS_EACH=560 setsid taskset -c "$cores" \
    bash benchmarks/host/gpu_session.sh "${@:4}" >"/tmp/out/$name/log.txt" 2>&1 </dev/null &
}

export PARTS=${PARTS:-target eagle3} ALGORITHM=${ALGORITHM:-EAGLE3}
export TRACE=${TRACE-1} TILE_ROUNDS=${TILE_ROUNDS:-2} TILE_SECONDS=${TILE_SECONDS:-1070} TILE_CLIENTS=${TILE_CLIENTS:-64 128 32 16 8 1 4}

train() {
  chain train 0 0-15 tile_train
  SUITES=triton-eagle3 SUITE_SECONDS=400 chain tests 0 0-7 tests found
}

one() { # trained after 340 s, up after 560; all loads in 930 s; then 80 s for the rest
  [[ -z ${BESIDE:-} ]] || SUITES=$BESIDE SUITE_SECONDS=230 chain more-tests 0 0-15 tests found
  SETTINGS="none k1 k2 k3 k5 k7 tile tile-rejecting" TILE_TEMPERATURES="0 0.8" \
    chain figures 0 0-15 tile_wait tile_up tile_run tile_down tile_thread
}

launches() { # launches after 250 s, 250 s for the rest (reckoned)
  DRAWN=1 TRACE='' MEASURE=1 SETTINGS="k7 tile" chain launches 0 0-15 tile_drawn tile_up tile_launches tile_down \
    tile_up_useless tile_useless tile_down tile_again
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
  rm -rf /tmp/out/live
  for folder in /tmp/tilespec-bench-*/; do # what servers that still run have written
    for file in "$folder"*.log "$folder"*.trace.jsonl; do
      [[ ! -e $file ]] || { mkdir -p "/tmp/out/live$folder" && nice -n 19 xz -1 -T2 -c "$file" >"/tmp/out/live$file.xz"; }
    done
  done
  tar -C /tmp -cJf /tmp/out.tar.xz --exclude='*-responses.jsonl' --exclude='*.npy' --exclude='*-claims.json' out
  mv /tmp/out.tar.xz "$OUT" # tar's status is 1 where a file has grown meanwhile
}

"$@"
