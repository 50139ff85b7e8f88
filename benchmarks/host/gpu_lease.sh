#!/usr/bin/env bash
# A lease of one GPU, call by call. Each call sends the working tree anew, and a host that is idle for 30 s goes back, with
# all that lies on it: so all calls are sent at once, none after the answer to another one, and what is to be done is
# decided between them, in .gpu-tools/todo.sh, which travels with each. Work goes on in /tmp/mine, results lie in /tmp/out,
# and looks bring back what there is as out.tar.xz.
#
# Here, before:
#   gpu_lease.sh pack     SGLang and FlashAttention 3 of .venv-0.5.17 (`make venv-other`; the
#                         host has torch 2.11), as .gpu-0 to .gpu-5, and .gpu-tools     70 s
#   gpu_lease.sh sizes    whether each of these and the tree fit into a transfer; `pack` asks it too, the tree grows
#
# There, with .gpu-tools, and its part:
#   gpu_lease.sh part 0    the same for 1 to 5; with the second SGLang is there and TileSpec's pair begins to be
#                          trained, unless TRAIN is empty, with the last one FlashAttention 3 is there and
#                          `gpu_chains.sh one` begins, or CHAIN                                                5 to 30 s
#   gpu_lease.sh next      fifteen times for half an hour: the tree again, todo.sh, a look                       105 s
#
# A call that finds nothing to go on with fails at once, and so does each behind it: then there is time for a second try.
#
# .gpu-tools is a copy of ../shared/gpu. todo.sh runs in /tmp/mine; `once NAME` is true the first time, and `bash
# benchmarks/host/gpu_chains.sh chain NAME 0 0-15 STEP...` starts steps in the background, with results in /tmp/out/NAME.
set -uo pipefail
tree=$PWD
most=$((62 << 20)) # of the 64 MiB of a transfer
parts=/tmp/gpu/parts

pack() {
  local unused="schemathesis jsonschema-rs fonttools ast-serialize hypothesis-jsonschema hypothesis-graphql"
  local packed part
  packed=$(mktemp -d)
  mkdir -p .git/info
  grep -qxF '/.gpu*/' .git/info/exclude || echo '/.gpu*/' >>.git/info/exclude
  rm -rf .gpu-?
  mkdir -p .gpu-tools .gpu-{0..5}
  cp ../shared/gpu/* .gpu-tools/ -r
  [[ -e .gpu-tools/sampling.so ]] || .venv-0.5.17/bin/python benchmarks/host/build_sampler.py .gpu-tools/sampling.so || exit
  .venv-0.5.17/bin/python .gpu-tools/pack.py --out "$packed/sglang" --fa3 --also-drop $unused || exit
  split -n 2 -d -a 1 "$packed/sglang/site.tar.xz" "$packed/site."
  cat "$packed"/sglang-fa3-?/part.? >"$packed/fa3" # of three each is too large
  split -n 4 -d -a 1 "$packed/fa3" "$packed/fa3."
  for part in 0 1; do mv "$packed/site.$part" .gpu-$part/; done
  git describe --always --dirty --abbrev=10 --match= >.gpu-0/commit
  for part in 0 1 2 3; do mv "$packed/fa3.$part" .gpu-$((part + 2))/part.$part; done
  rm -r "$packed"
  sizes
}

sizes() {
  local common part all
  common=$(git ls-files -z --cached --others --exclude-standard | du -cb --files0-from=- | tail -n 1 | cut -f 1)
  for part in .gpu-?; do
    all=$((common + $(du -scb "$part" .gpu-tools | tail -n 1 | cut -f 1)))
    echo "$part: with the tree $((all >> 20)) MiB"
    ((all <= most)) || { echo "a transfer holds 64 MiB, with what packing adds" >&2 && exit 1; }
  done
}

once() { [[ ! -e /tmp/did-$1 ]] && touch "/tmp/did-$1"; }

there() { # PATH...: left by earlier calls
  local path
  for path; do
    [[ -e $path ]] || { echo "no $path: an earlier call failed, or this is another machine" >&2 && exit 1; }
  done
}

mine() { # GNU tar replaces files: a script that runs is not changed
  mkdir -p /tmp/mine /tmp/out
  tar -c --exclude='./.gpu*' --exclude=./.git --exclude='./.venv*' . | tar -x -C /tmp/mine
  cd /tmp/mine || exit
}

how_far() { # the end of each log that grows
  nvidia-smi --query-gpu=memory.used,clocks.sm,power.draw --format=csv,noheader
  local log
  for log in /tmp/suites-*/*.log /tmp/tilespec-bench-*/*.log; do
    [[ ! -e $log ]] || { echo "--- $log" && tail -c 1500 "$log" | tr '\r' '\n' | cut -c 1-200 | tail -n 1; }
  done
}

part() {
  mkdir -p "$parts" /tmp/gpu/fa3
  case $1 in
    0) cp .gpu-0/* "$parts/" ;;
    1) there "$parts/site.0" && cp .gpu-1/site.1 "$parts/" && train ;;
    [2-4]) there /tmp/gpu/site/sglang && cp ".gpu-$1"/part.? /tmp/gpu/fa3/ ;;
    5) there /tmp/gpu/site/sglang && cp .gpu-5/part.? /tmp/gpu/fa3/ && serve ;;
  esac
}

train() {
  nvidia-smi --query-gpu=name,clocks.sm,clocks.mem,power.limit,driver_version --format=csv
  cat "$parts"/site.? >"$parts/site.tar.xz"
  bash .gpu-tools/unpack.sh "$parts" || exit
  install -D .gpu-tools/sampling.so /tmp/gpu/site/flashinfer/data/aot/sampling/sampling.so
  python3 .gpu-tools/mkmodel.py /tmp/m8b 8b .gpu-tools/tokenizer
  mine
  [[ -z ${TRAIN-1} ]] || TRAIN_TIME=${TRAIN_TIME:-0.42} bash benchmarks/host/gpu_chains.sh train
  sleep 5
  bash benchmarks/host/gpu_chains.sh look
}

serve() {
  there /tmp/gpu/fa3/part.{0..3}
  bash .gpu-tools/unpack.sh "$parts" fa3 || exit
  mine
  bash benchmarks/host/gpu_chains.sh ${CHAIN:-one} # may be `chain NAME GPU CORES STEP...`
  LOOK_SECONDS=20 bash benchmarks/host/gpu_chains.sh look
}

next() {
  mine
  [[ ! -e $tree/.gpu-tools/todo.sh ]] || source "$tree/.gpu-tools/todo.sh" >>/tmp/out/todo.txt 2>&1
  if ! pgrep -f benchmarks/host/gpu_session.sh >/dev/null; then
    echo "nothing runs here" >&2
    bash benchmarks/host/gpu_chains.sh look
    exit 1
  fi
  how_far
  LOOK_SECONDS=${LOOK_SECONDS:-100} LOOK_LINES=${LOOK_LINES:-5} bash benchmarks/host/gpu_chains.sh look
}

"$@"
