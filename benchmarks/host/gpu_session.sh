#!/usr/bin/env bash
# Every figure that needs a GPU, in steps that end within ten minutes: gpu_session.sh STEP... on the GPU host, from the
# repository's root, when SGLang lies in /tmp/gpu/site, or SITE, and a model of 8B shape in /tmp/m8b. Results go to $OUT. With
# several GPUs, one of these for each, side by side: CUDA_VISIBLE_DEVICES=1 OUT=$OUT/1 gpu_session.sh STEP...
#
#   quiet        is this host quiet enough? else give it back                6 s
#   up           stock, stock with rows, ours, or SERVERS; left running; DEFAULTS=1: with SGLang's options    130 s
#   embeddings   what embeddings cost; ROUNDS, LOADS                       420 s
#   steady       embeddings and fingerprints under mixed traffic, servers with SGLang's defaults; ROUNDS, LIMIT   900 s
#   shapes       two servers with SGLang's defaults for each of SHAPES, embeddings beside plain; SHAPE_ROUNDS, SHAPE_REQUESTS,
#                LOADS, STARTS, OUR_ARGS;
#                250 s each (reckoned)
#   refused      what each refused option does where it is not refused; TRIALS_AT_ONCE, TRIALS   400 s (reckoned)
#   states       raw states beside the stock server's                      110 s
#   up_injection  two more                                                 100 s
#   small        candidates, pooling, what a step costs the host            60 s
#   local_generation  candidates beside transformers in this process       200 s (reckoned)
#   encode       /encode, cached prompts, streams; PIECES                  280 s
#   injection    injection                                                 200 s
#   toploc       fingerprints; ROUNDS                                      250 s
#   down         stop the servers                                           20 s
#   huggingface  the same vectors without a server                          60 s
#   moe, fp8     each MoE runner, of bfloat16 and FP8; repeat until all are in the file     about 500 s each (reckoned);
#                throughput alone with KNOWN=FOLDER, where moe.jsonl and moe-fp8.jsonl lie  about 250 s each (reckoned)
#   moe_made     the model for the next one alone; LAYERS                    40 s (24 layers)
#   moe_gone     remove their models
#   moe_decode   what each of our options adds to a decode step, with triton; where the GPU waits; LAYERS, DECODING
#                150 s (four servers of 8 layers; reckoned)
#   tiny_moe     the same for a trained model: do rows and fingerprints agree?              about 200 s (reckoned)
#   moe_steps    TileSpec's time of a step on a mixture of experts                          about 250 s (reckoned)
#   tile_train   TileSpec's pair, a target and an EAGLE head, or other PARTS, into /tmp/pair, and widened into /tmp/wide
#                340 s (TRAIN_TIME 0.42)
#   tile_drawn   models of that cost in its place, whose weights nobody trained: with DRAWN=1, for tile_launches and
#                tile_useless                                                15 s
#   tile_wait    until it is there, and no /tmp/hold
#   tile_up      servers with it and beside it; SETTINGS (tile-before: of another checkout, BEFORE), ALGORITHM, TRACE
#                240 s (eight)
#   tile_run     its cells; repeat until all are measured; TILE_SECONDS, TILE_CLIENTS, TILE_KINDS, TILE_TEMPERATURES,
#                TILE_ONLY (of SETTINGS)                                   600 s
#   tile_steady  its servers under mixed traffic; STEADY_CLIENTS, STEADY_OUTPUTS, TILE_SECONDS                 500 s
#   tile_trace   what the GPU and the host do in 20 steps of 1 and of 16 clients; TRACED of those that are up
#                30 s (reckoned)
#   tile_down    stop them; bring back traces and cost profiles
#   tile_again   a start by itself, of the setting AGAIN: behind another one, or before it, a later one is seen    225 s
#   tile_up_useless, tile_useless    a draft that is never right, beside none          90 and 70 s (reckoned)
#   running      what fingerprints of running requests cost it; likewise   30 s
#   tile_thread  what a step costs the scheduler's thread; the GPU may have other work     30 s
#   tile_launches  what a step costs the thread in real servers, beside a fixed setting; after tile_up with MEASURE=1 and
#                SETTINGS="k7 tile"                                          110 s
#   tile_accept  what acceptance costs the GPU; nothing else runs then                      30 s
#   calibrate    1,000 honest responses, 1,750 of cheats             350 s (9 small servers of its own, side by side)
#   tests found               half of tests/gpu, and tests/kernels         550 s (nothing else runs then)
#   more_tests found          the other half                               450 s
#   pair found                what needs two GPUs; PAIR                    200 s
#
# One H200 for 30 minutes, every command within ten:
#   quiet up embeddings small | encode states toploc | down up_injection injection | down huggingface; SUITES=... tests found
# MoE: quiet moe | fp8 | tiny_moe moe_steps
# TileSpec: tile_train | tile_up | tile_run, as often as there is time
# In the background: gpu_chains.sh
set -uo pipefail
source "$(dirname "$0")/gpu_host.sh" "${SITE:-/tmp/gpu/site}" || exit
export PYTHONUNBUFFERED=1
out=${OUT:-benchmarks/results}
mkdir -p "$out"
model=(--model /tmp/m8b)
server=(-- --load-format dummy --dtype bfloat16 --attention-backend fa3 --sampling-backend pytorch
  --grammar-backend none --cuda-graph-max-bs-decode 128 --mem-fraction-static 0.9 --max-total-tokens 65536
  --sleep-on-idle) # while it is another's turn: each would keep a core busy
prefill=(--cuda-graph-backend-prefill=disabled) # a start takes a minute less
if [[ -n ${DEFAULTS:-} ]]; then # SGLang's own options, prefill graphs among them
  server=(-- --load-format dummy --dtype bfloat16 --mem-fraction-static 0.9 --max-total-tokens 65536 --sleep-on-idle)
  prefill=()
fi
server+=(${MORE:-}) # options of every server, as --tp-size 2

bench() { # NAME LIMIT ARGUMENT...: run a benchmark, at most LIMIT seconds
  local name=$1 limit=$2
  shift 2
  timeout "$limit" python3 "benchmarks/$name.py" "$@" "${model[@]}" "${server[@]}" "${prefill[@]}" 2>&1 |
    grep --line-buffered -v 'server starting' | tail -n 40
}

rig() {
  python3 benchmarks/rig.py up --servers "$@" --logs "/tmp/rig-logs/${CUDA_VISIBLE_DEVICES:-all}" \
    "${model[@]}" "${server[@]}" "${prefill[@]}" | grep ready
}

quiet() { python3 benchmarks/host/quiet_host.py || exit; } # nothing after it would be worth its time

up() { rig ${SERVERS:-stock ours stock-rows}; }

up_injection() { rig injecting stock-uncached; }

down() { python3 benchmarks/rig.py down; }

embeddings() {
  # Many short windows: what disturbs a host comes in bursts, and the median does not see those.
  bench bench_embeddings 500 --out "$out/embeddings.jsonl" --rounds "${ROUNDS:-4}" \
    --loads ${LOADS:-128/128/32/4 128/128/64/4 128/128/128/5 512/1/32/3}
}

steady() { # as users start them; the two servers share the memory of one GPU, and wait for their turn without a core each
  local defaults=(--model /tmp/m8b -- --load-format dummy --dtype bfloat16 --mem-fraction-static 0.9
    --max-total-tokens 98304 --sleep-on-idle)
  python3 benchmarks/rig.py up --servers stock ours --logs "$out/steady-logs" "${defaults[@]}" | grep ready
  timeout 1000 python3 benchmarks/bench_steady.py --out "$out/steady.jsonl" --rounds "${ROUNDS:-4}" --limit "${LIMIT:-800}" \
    --loads ${LOADS:-64-2048/64-192/32 64-2048/64-192/128 64-2048/256-1024/32 64-2048/256-1024/128} "${defaults[@]}"
  down
}

shapes() { # one on each GPU at a time; where one does not start, the others are still measured
  local shape gpu=0 gpus
  gpus=$(nvidia-smi -L | wc -l)
  for shape in ${SHAPES:-qwen3-8b gemma-3-12b gpt-oss-20b deepseek-v3 qwen3-next}; do
    CUDA_VISIBLE_DEVICES=$gpu timeout "${SECONDS_EACH:-570}" python3 benchmarks/bench_shapes.py "$shape" --out "$out/shapes.jsonl" \
      --rounds "${SHAPE_ROUNDS:-8}" --starts "${STARTS:-1}" \
      --requests "${SHAPE_REQUESTS:-3}" ${OUR_ARGS:+--our-args="$OUR_ARGS"} ${LOADS:+--loads $LOADS} 2>&1 |
      grep --line-buffered -v 'server starting' | cut -c 1-900 | tail -n 40 &
    gpu=$(((gpu + 1) % gpus))
    ((gpu)) || wait
  done
  wait
}

refused() { # beside others: nothing is timed
  timeout "${SECONDS_EACH:-900}" python3 benchmarks/refused_options.py --out "$out/refused.jsonl" --start-seconds 200 \
    --at-once "${TRIALS_AT_ONCE:-12}" ${TRIALS:+--only $TRIALS} 2>&1 | cut -c 1-900
}

local_generation() { bench bench_candidates 400 --rounds 3 --local /tmp/m8b --out "$out/local.jsonl"; }

encode() {
  for piece in ${PIECES:-throughput cached streams}; do
    bench bench_encode 250 --piece "$piece" --out "$out/encode.jsonl" --rounds 3 --seconds 6
  done
}

states() { bench bench_encode 400 --piece states --out "$out/encode-states.jsonl" --seconds 6; }

huggingface() { bench bench_encode 250 --piece huggingface --out "$out/encode-huggingface.jsonl" --rounds 3 --seconds 5; }

toploc() { bench bench_toploc 290 --out "$out/toploc.jsonl" --rounds "${ROUNDS:-6}"; }

injection() { bench bench_injection 290 --hidden-size 4096 --rounds 3 --out "$out/injection.jsonl"; }

small() {
  bench bench_candidates 60 --rounds 6 --out "$out/candidates.jsonl"
  timeout 60 python3 benchmarks/bench_pool_rows.py --out "$out/pool.jsonl" --tiles 32/64/4 64/64/4 64/128/8
  timeout 60 python3 benchmarks/bench_step.py --out "$out/step.jsonl"
}

# Which share of honest responses fails, and of cheats passes: of the tiny model, for there are no weights of a larger one.
# Cut off, it goes on where it was: the responses are kept in $out.
calibrate() {
  local tiny=tests/support/models
  local common="--attention-backend fa3 --sampling-backend pytorch --grammar-backend none --dtype bfloat16
    --cuda-graph-backend-prefill=disabled --mem-fraction-static 0.5 --max-total-tokens 60000"
  local drafts="--speculative-algorithm EAGLE --speculative-draft-model-path $tiny/tiny-eagle
    --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
  timeout "${SECONDS_EACH:-570}" python3 -m tessera.cli toploc calibrate --model-path "$tiny/tiny" --responses 250 --at-once 9 \
    --honest= --honest='--attention-backend triton' --honest=--disable-cuda-graph --honest="$drafts" \
    --server-args="$common" --keep "$out/toploc-responses.jsonl" --output "$out/toploc-calibrate.json" \
    --plot "$out/toploc-calibrate.png"
}

moe() { AT_ONCE=${AT_ONCE:-$((LAYERS > 8 ? 2 : 6))} experts moe moe; }

fp8() { experts fp8 moe-fp8 --fp8; }

# Of the whole model's 48 layers 8, each as it is there: six servers fit side by side, and start quickly; what a step costs
# once, SGLang's and ours, weighs up to six times as much: for throughput LAYERS=24. Graphs for what is measured
# only. DeepGEMM's kernels are compiled when first seen and kept for later servers, not all at start.
LAYERS=${LAYERS:-8}
expert_server=(-- --dtype bfloat16 --attention-backend fa3 --sampling-backend pytorch
  --grammar-backend none --cuda-graph-bs-decode 8 16 24 32 --mem-fraction-static 0.9 --max-total-tokens 65536
  --sleep-on-idle "${prefill[@]}")

shape() { # FOLDER OPTION...: unless it is there
  [[ -e $1/model.safetensors.index.json ]] || python3 benchmarks/moe_shape.py "$@" 2>&1 | tail -n 1
}

expert_bench() { # ARGUMENT...: RUNNERS picks some
  command -v nvcc >/dev/null || export SGL_DG_USE_NVRTC=1
  SGLANG_JIT_DEEPGEMM_PRECOMPILE=0 timeout "${SECONDS_EACH:-570}" python3 benchmarks/bench_moe.py \
    ${RUNNERS:+--backends $RUNNERS} ${MOE_LOADS:+--loads $MOE_LOADS} ${AT_ONCE:+--at-once $AT_ONCE} "$@" 2>&1 | grep --line-buffered -v 'server starting' | cut -c 1-600 | tail -n 60
}

experts() { # NAME RESULTS OPTION...: the runners of a model of Qwen3-30B-A3B's shape; KNOWN has results to go on from, of those in them
  local model=/tmp/m30b-$1-$LAYERS
  shape "$model" --layers "$LAYERS" "${@:3}"
  local RUNNERS=${RUNNERS:-}
  if [[ -n ${KNOWN:-} ]]; then
    [[ -e $out/$1.jsonl ]] || cp "$KNOWN/$2.jsonl" "$out/$1.jsonl"
    RUNNERS=$(python3 -c 'import json, sys; print(*{json.loads(line)["backend"]: 0 for line in sys.stdin})' <"$out/$1.jsonl")
  fi
  expert_bench --model "$model" --out "$out/$1.jsonl" "${expert_server[@]}"
}

tiny_moe() {
  expert_bench --model tests/support/models/tiny-moe --out "$out/tiny-moe.jsonl" --loads "${expert_server[@]}"
}

moe_gone() { rm -rf /tmp/m30b-*; } # they fill the disk

moe_made() { shape "/tmp/m30b-moe-$LAYERS" --layers "$LAYERS"; }

moe_decode() { # four servers side by side, or three with 24 layers
  moe_made
  timeout 250 python3 benchmarks/bench_decode.py --model "/tmp/m30b-moe-$LAYERS" --out "$out/moe-decode.jsonl" \
    --servers ${DECODING:-stock stock ours injecting} "${expert_server[@]}" --moe-runner-backend triton 2>&1 |
    grep --line-buffered -v 'server starting'
}

moe_steps() { # one server at a time: with so few layers that six fit, a step would be bound by the host
  shape /tmp/m30b-steps --layers 24
  shape /tmp/m30b-draft --draft
  timeout "${SECONDS_EACH:-570}" python3 benchmarks/bench_moe_steps.py --model /tmp/m30b-steps --draft /tmp/m30b-draft \
    --out "$out/moe-steps.jsonl" --loads 128/256/16/10 128/256/32/10 "${expert_server[@]}" \
    --speculative-draft-attention-backend triton 2>&1 | grep --line-buffered -v 'server starting' | tail -n 40
}

# TileSpec: see benchmarks/tilespec/README.md.
tile_train() {
  python3 -m tilespec.train_pair --out /tmp/pair --parts ${PARTS:-target eagle} --time "${TRAIN_TIME:-0.6}"
  python3 -m tilespec.prompts --pair /tmp/pair --out /tmp/pair/prompts.json
  python3 -m tilespec.pad_target --pair /tmp/pair --out /tmp/wide
  cp /tmp/pair/*.jsonl /tmp/wide/agreement.jsonl "$out"
  touch /tmp/pair/ready
}

tile_drawn() { # in the place of tile_train, where it does not matter what is accepted: nothing is
  python3 -m tilespec.draw_pair --tokenizer /tmp/m8b --out /tmp/wide --prompts /tmp/pair/prompts.json
}

tile_wait() { # until another one of these has trained the pair, and nobody holds it up
  local _
  for _ in {1..600}; do [[ ! -e /tmp/pair/ready || -e /tmp/hold ]] || return 0; sleep 2; done
  echo "nobody has trained the pair in 20 minutes" && exit 1
}

tile_up() {
  local weights=(--share-weights)
  [[ -z ${DRAWN:-} ]] || weights=(-- --load-format dummy --speculative-draft-load-format auto)
  python3 -m tilespec.bench_tilespec up --models /tmp/wide --algorithm "${ALGORITHM:-EAGLE}" \
    --settings ${SETTINGS:-none k1 k2 k3 k5 k7 tile} ${TRACE:+--trace} ${MEASURE:+--measure-thread} ${BEFORE:+--before $BEFORE} \
    "${weights[@]}" | grep ready
  cp "/tmp/tilespec-bench-${CUDA_VISIBLE_DEVICES:-0}"/*tile*.log "$out"
  grep -h 'the cost profile is' "$out"/*tile*.log >>"$out/profile-starts.txt"
}

tile_again() { # of two starts the later one finds the profile
  local out=$out/again
  mkdir -p "$out"
  SETTINGS=${AGAIN:-tile} tile_up
  python3 -m tilespec.bench_tilespec down
}

tile_run() { # what was measured already is not measured again
  local algorithm=${ALGORITHM:-EAGLE}
  python3 -m tilespec.bench_tilespec run --prompts /tmp/pair/prompts.json --out "$out/tilespec-${algorithm,,}.jsonl" \
    --limit "${TILE_SECONDS:-540}" --rounds "${TILE_ROUNDS:-2}" ${TILE_CLIENTS:+--clients $TILE_CLIENTS} \
    ${TILE_KINDS:+--kinds $TILE_KINDS} ${TILE_TEMPERATURES:+--temperatures $TILE_TEMPERATURES} ${TILE_ONLY:+--settings $TILE_ONLY}
}

useless=tile-useless
[[ -z ${DRAWN:-} ]] || useless=tile

tile_up_useless() { MEASURE='' SETTINGS="none $useless" tile_up; }

tile_useless() { # a draft that is never right, beside none; both are up
  local out=$out/useless
  mkdir -p "$out"
  TILE_ONLY="none $useless" TILE_KINDS=mixed TILE_TEMPERATURES=0 TILE_CLIENTS="1 4 8 16 32 64 128" TILE_ROUNDS=1 \
    TILE_SECONDS=120 tile_run
}

tile_steady() {
  timeout "${TILE_SECONDS:-540}" python3 -m tilespec.steady --prompts /tmp/pair/prompts.json --out "$out/tile-steady.jsonl" \
    --limit "$((${TILE_SECONDS:-540} - 40))" --clients ${STEADY_CLIENTS:-8 64} --outputs ${STEADY_OUTPUTS:-64-192}
}

tile_trace() {
  timeout 100 python3 -m tilespec.trace_steps --prompts /tmp/pair/prompts.json --out "$out/traces" --settings ${TRACED:-k7 tile}
  find "$out/traces" -size +2M -delete # all that comes back is one file of at most 16 MiB
}

tile_thread() { timeout 100 python3 -m tilespec.time_policy --out "$out/time-policy.jsonl"; }

tile_launches() {
  timeout 200 python3 -m tilespec.time_launches --prompts /tmp/pair/prompts.json --out "$out/launches.jsonl"
}

tile_accept() { timeout 100 python3 -m tilespec.time_accept --out "$out/time-accept.jsonl"; }

running() { timeout 100 python3 benchmarks/bench_running.py --out "$out/running.jsonl"; }

tile_down() {
  python3 -m tilespec.bench_tilespec down
  # What was chosen, if TRACE was set, and what the choices relied on.
  for file in "/tmp/tilespec-bench-${CUDA_VISIBLE_DEVICES:-0}"/*.trace.jsonl ~/.cache/tessera/tilespec/*.json; do
    [[ ! -e $file ]] || xz -T8 -c "$file" >"$out/$(basename "$file").xz"
  done
  rm -f "/tmp/tilespec-bench-${CUDA_VISIBLE_DEVICES:-0}"/*.trace.jsonl # or looks would bring them back twice
}

# Several processes at a time, each with servers of its own: what is measured here is right or wrong, not fast. SUITES
# picks some by name, SUITE_SECONDS says how long one may take; with two GPUs they take turns.
gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
suites=0
suite_logs=/tmp/suites-$(basename "$out")

suite() { # NAME ARGUMENT...: start it, its output and its servers' logs in $suite_logs
  [[ -z ${SUITES:-} || " $SUITES " == *" $1 "* ]] || return
  local device=${devices:-$((suites++ % gpus))}
  mkdir -p "$suite_logs/$1"
  # Few threads: the reference's would fight with the servers' busy loops, and take minutes instead of seconds.
  CUDA_VISIBLE_DEVICES=$device OMP_NUM_THREADS=2 timeout -s INT "${SUITE_SECONDS:-540}" \
    python3 -m pytest -o minversion=7 -q -s -p no:cacheprovider --server-log-dir "$suite_logs/$1" \
    "${@:2}" >"$suite_logs/$1.log" 2>&1 &
}

tilespec_tests=tests/gpu/test_tilespec.py::test_dice_do_not_change_the_tokens

tests() {
  suite kernels tests/gpu/test_reader.py tests/gpu/test_pool_rows.py tests/gpu/test_acceptance.py tests/kernels
  suite top-rows tests/gpu/test_toploc.py -k largest
  suite fingerprints tests/gpu/test_toploc.py -k honest
  suite exact tests/gpu/test_toploc.py -k exact
  suite injection tests/gpu/test_injection.py tests/gpu/test_injection_lora.py
  suite tilespec tests/gpu/test_tilespec.py -k "not dice"
  suite penalties tests/gpu/test_tilespec.py -k penalties
  suite memory-saver tests/gpu/test_memory_saver.py
  local drafts # one server each: side by side they are through in the time of one
  for drafts in standalone eagle eagle3; do
    suite "fa3-$drafts" "$tilespec_tests[fa3-bfloat16-$drafts]"
    suite "triton-$drafts" "$tilespec_tests[triton-float16-$drafts]"
  done
  suite sampled-fa3 tests/gpu/test_tilespec.py -k "what_is_sampled and fa3 and not rejecting"
  suite sampled-triton tests/gpu/test_tilespec.py -k "what_is_sampled and triton and not few"
  suite sampled-rejecting tests/gpu/test_tilespec.py -k "what_is_sampled and rejecting"
  suite sampled-few tests/gpu/test_tilespec.py -k "what_is_sampled and few"
  suite trees-fa3 tests/gpu/test_tilespec.py -k "trees and fa3"
  suite trees-triton tests/gpu/test_tilespec.py -k "trees and triton"
}

more_tests() {
  suite embeddings-fa3 tests/gpu/test_embeddings.py -k "fa3 and breakable"
  suite embeddings-triton tests/gpu/test_embeddings.py -k triton
  suite embeddings-tc tests/gpu/test_embeddings.py -k tc_piecewise
  suite embeddings-full tests/gpu/test_embeddings.py -k full
  suite moe tests/gpu/test_moe.py
  suite fa3-chain tests/gpu/test_speculative.py -k "fa3 and not tree"
  suite fa3-tree tests/gpu/test_speculative.py -k "fa3 and tree"
  suite triton-chain tests/gpu/test_speculative.py -k "triton and not tree"
  suite triton-tree tests/gpu/test_speculative.py -k "triton and tree"
}

pair() {
  local devices=${PAIR:-0,1}
  export SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=0 # another one of these may have a server on one of both
  suite ranks-dense tests/gpu/test_tensor_parallel.py -k dense
  suite ranks-experts tests/gpu/test_tensor_parallel.py -k experts
  suite ranks-tilespec tests/gpu/test_tilespec.py -k two_ranks
  suite deployments tests/gpu/test_deployments.py
}

found() { # wait for all, pack the logs, say what they found
  wait
  tar -C "$suite_logs" -cJf "$out/suites.tar.xz" .
  grep -a -H 'MEASURED\|passed\|failed\|^FAILED\|^ERROR\|^E  ' "$suite_logs"/*.log | cut -c 15-300 | grep -v 'server starting'
  rm -r "$suite_logs"
}

for step in "$@"; do
  echo "== $step, $(date +%T)"
  "$step"
done
