#!/usr/bin/env bash
# Chains of steps of gpu_session.sh in the background, one for each GPU of a host, with sixteen cores each: a command that
# borrows the host may end before them. Prepared as gpu_session.sh wants it. Results and each chain's log.txt lie in
# /tmp/out/NAME.
#
#   gpu_chains.sh train   TileSpec's pair on GPU 1, if there is one; it needs no FlashAttention 3 and may start before the rest
#   gpu_chains.sh one     then, once all is unpacked, on one GPU: TileSpec's tests while the pair is trained, and TileSpec
#   gpu_chains.sh two     then, once all is unpacked, on two GPUs: tests while the pair is trained, some on both; TileSpec
#                         beside 3, 5 and 7 drafted tokens on one; on the other one a step of a mixture of experts,
#                         TileSpec beside 0, 1 and 2, a useless draft, rejection sampling
#   gpu_chains.sh tile    or on two: TileSpec alone, beside every fixed setting; what both GPUs have in common is TileSpec
#   gpu_chains.sh four    or on four: all of TileSpec's settings, and mixtures of experts
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
  if [[ $(nvidia-smi -L | wc -l) -gt 1 ]]; then chain train 1 16-31 tile_train; else chain train 0 0-15 tile_train; fi
}

tilespec_suites="fa3-standalone fa3-eagle fa3-eagle3 sampled-fa3 sampled-triton sampled-rejecting trees-fa3 trees-triton"

one() {
  devices=0 SUITES="${SUITES:-$tilespec_suites}" SUITE_SECONDS=${SUITE_SECONDS:-270} chain tests 0 0-7 tests pair found
  # Seven servers up 350 s, 42 loads of seven settings 1,700 s, each of 16 requests and more.
  TRACE=1 TILE_SECONDS=${TILE_SECONDS:-1700} TILE_ROUNDS=${TILE_ROUNDS:-1} TILE_CLIENTS="64 1 128 8 32 4 16" \
    chain figures 0 0-15 tile_wait tile_up tile_run tile_down
}

figures=(up running tile_times embeddings toploc down up_injection injection down)

two() {
  devices=0 SUITES="$tilespec_suites ranks-experts ranks-tilespec" SUITE_SECONDS=${SUITE_SECONDS:-300} \
    chain tests 0 0-23 tests pair found
  SETTINGS="none k1 k2 tile" TILE_CLIENTS="128 64 32 1" TILE_KINDS="hard mixed easy" TILE_ROUNDS=1 \
    TILE_SECONDS=${TILE_SECONDS:-650} \
    chain figures 0 0-15 tests_wait moe_decode tile_wait tile_up tile_run tile_down tile_useless tile_reject
  SETTINGS="k3 k5 k7 tile" TRACE=1 TILE_ROUNDS=1 TILE_SECONDS=1200 \
    chain tilespec 1 16-31 tile_wait tile_up tile_run tile_few tile_down
}

tile() {
  devices=0 SUITES="kernels $tilespec_suites" SETTINGS="none k1 k7 tile" TILE_SECONDS=900 \
    chain tilespec-b 0 0-15 tests found tile_times tile_wait tile_up tile_run tile_down
  SETTINGS="k2 k3 k5 tile" TRACE=1 TILE_SECONDS=900 \
    chain tilespec-a 1 16-31 tile_wait tile_up tile_run tile_down tile_again tile_useless
}

four() {
  chain figures 0 0-15 "${figures[@]}"
  SETTINGS="none k1 k3 tile" chain tilespec-a 1 16-31 tile_wait tile_up tile_run tile_down tile_again
  devices=2 SUITES="kernels $tilespec_suites triton-standalone injection embeddings-fa3" \
    SETTINGS="k2 k5 k7 tile" chain tilespec-b 2 32-47 tests more_tests found tile_wait tile_up tile_run tile_down
  # Only runners that serve: one that fails takes a minute or five to do so.
  RUNNERS="triton cutlass deep_gemm triton_kernel" SETTINGS="none k3 tile tile-useless" TRACE=1 TILE_SECONDS=420 \
    chain tilespec-c 3 48-63 moe tile_wait tile_up tile_run tile_down fp8
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
    for file in "$folder"*tile*.log "$folder"*.trace.jsonl; do
      [[ ! -e $file ]] || { mkdir -p "/tmp/out/live$folder" && xz -1 -T8 -c "$file" >"/tmp/out/live$file.xz"; }
    done
  done
  tar -C /tmp -cJf /tmp/out.tar.xz --exclude='*-responses.jsonl' --exclude='*.npy' --exclude='*-claims.json' out &&
    mv /tmp/out.tar.xz "$OUT"
}

"$@"
