#!/usr/bin/env bash
# A lease of one GPU, call by call. Each call sends the working tree anew, and a host that is idle for 30 s goes back,
# with all that lies on it: so all calls are sent at once, none after the answer to another one, and what is to be done is
# decided between them, in .gpu-tools/todo.sh, which travels with each.
# Work goes on in /tmp/mine, results lie in /tmp/out, and every call brings back what there is as out.tar.xz.
#
#   gpu_lease.sh first   with .gpu and .gpu-tools: unpack SGLang, begin to train TileSpec's pair                  30 s
#   gpu_lease.sh part 0  with .gpu-fa3-0; the same for 1, 2                                                        5 s each
#   gpu_lease.sh last    with .gpu-fa3-3 and .gpu-tools: put FlashAttention 3 together; gpu_chains.sh one         40 s
#   gpu_lease.sh next    with .gpu-tools, fifteen times for half an hour: the tree again, todo.sh, a look        105 s
#
# .gpu-tools is a copy of ../shared/gpu. todo.sh runs in /tmp/mine; `once NAME` is true the first time, and `bash
# benchmarks/gpu_chains.sh chain NAME 0 0-15 STEP...` starts steps in the background, with results in /tmp/out/NAME.
set -uo pipefail
tree=$PWD

once() { [[ ! -e /tmp/did-$1 ]] && touch "/tmp/did-$1"; }

mine() { # GNU tar replaces files: a script that runs is not changed
  mkdir -p /tmp/mine /tmp/out
  tar -c --exclude='./.gpu*' --exclude=./.git --exclude=./.venv . | tar -x -C /tmp/mine
  cd /tmp/mine || exit
}

how_far() { # the end of each log that grows
  nvidia-smi --query-gpu=memory.used,clocks.sm,power.draw --format=csv,noheader
  local log
  for log in /tmp/suites-*/*.log /tmp/tilespec-bench-*/*.log; do
    [[ ! -e $log ]] || { echo "--- $log" && tail -c 1500 "$log" | tr '\r' '\n' | cut -c 1-200 | tail -n 1; }
  done
}

first() {
  nvidia-smi --query-gpu=name,clocks.sm,clocks.mem,power.limit,driver_version --format=csv
  bash .gpu-tools/unpack.sh .gpu
  python3 .gpu-tools/mkmodel.py /tmp/m8b 8b .gpu-tools/tokenizer
  mine
  TRAIN_TIME=${TRAIN_TIME:-0.5} bash benchmarks/gpu_chains.sh train
  sleep 5
  bash benchmarks/gpu_chains.sh look
}

part() { mkdir -p /tmp/gpu/fa3 && cp ".gpu-fa3-$1"/part.* /tmp/gpu/fa3/; }

last() {
  part 3
  bash .gpu-tools/unpack.sh .gpu fa3
  mine
  bash benchmarks/gpu_chains.sh one
  LOOK_SECONDS=20 bash benchmarks/gpu_chains.sh look
}

next() {
  mine
  [[ ! -e $tree/.gpu-tools/todo.sh ]] || source "$tree/.gpu-tools/todo.sh" >>/tmp/out/todo.txt 2>&1
  how_far
  LOOK_SECONDS=${LOOK_SECONDS:-100} LOOK_LINES=${LOOK_LINES:-5} bash benchmarks/gpu_chains.sh look
}

"$@"
