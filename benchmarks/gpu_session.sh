#!/usr/bin/env bash
# Every figure that needs a GPU, in steps that end within ten minutes: gpu_session.sh STEP... on the GPU host, from the
# repository's root, when SGLang lies in /tmp/gpu/site and a model of 8B shape in /tmp/m8b. Results go to $OUT.
#
#   up           two servers side by side, left running              120 s
#   embeddings   what embeddings cost                                550 s
#   few          the same with 32 clients                            180 s
#   encode       /encode, cached prompts, streams, Hugging Face      450 s
#   cached       cached prompts, with prefill graphs                 200 s (a server of its own)
#   states       raw states beside the stock server's                200 s (starts one server more)
#   up_injection two more                                            120 s
#   rest         fingerprints, injection                             500 s
#   small        candidates, pooling                                 100 s
#   down         stop the servers                                     20 s
#   moe, fp8     each MoE runner; repeat until it says that all are in the file   570 s each time, about 16 times
#   tiny_moe     the same for a trained model: do rows and fingerprints agree?    570 s each time
#   moe_steps    TileSpec's time of a step on a mixture of experts   400 s
#   calibrate    1,000 honest responses, 1,750 of cheats             350 s (9 small servers of its own, side by side)
#   tests        half of tests/gpu, tests/kernels; several at a time 550 s (nothing else runs then)
#   more_tests   the other half                                      450 s
#   pair         what needs two GPUs                                 250 s (nothing else runs then)
set -uo pipefail
source "$(dirname "$0")/gpu_host.sh" /tmp/gpu/site
export PYTHONUNBUFFERED=1
out=${OUT:-benchmarks/results}
model=(--model /tmp/m8b)
server=(-- --load-format dummy --dtype bfloat16 --attention-backend fa3 --sampling-backend pytorch
  --grammar-backend none --cuda-graph-max-bs-decode 128 --mem-fraction-static 0.9 --max-total-tokens 65536)
prefill=(--cuda-graph-backend-prefill=disabled) # a start takes a minute less

bench() { # NAME LIMIT ARGUMENT...: run a benchmark, at most LIMIT seconds
  local name=$1 limit=$2
  shift 2
  timeout "$limit" python3 "benchmarks/$name.py" "$@" "${model[@]}" "${server[@]}" "${prefill[@]}" 2>&1 |
    grep --line-buffered -v 'server starting' | tail -n 40
}

rig() { python3 benchmarks/rig.py up --servers "$@" --logs "$out" "${model[@]}" "${server[@]}" "${prefill[@]}" | grep ready; }

up() { rig stock ours; }

up_injection() { rig injecting stock-uncached; }

down() { python3 benchmarks/rig.py down; }

embeddings() { bench bench_embeddings 570 --out "$out/embeddings.jsonl" --loads 128/128/64/12 128/128/128/8 512/1/32; }

few() { bench bench_embeddings 300 --out "$out/embeddings-few.jsonl" --loads 128/128/32/10; }

encode() {
  for piece in throughput cached streams huggingface; do
    bench bench_encode 250 --piece "$piece" --out "$out/encode.jsonl"
  done
}

cached() { # a cached prompt is a prefill of one token: a graph, by default, and not one by one
  local prefill=(--cuda-graph-bs-prefill 4 16 64 512 2048)
  bench bench_encode 400 --piece cached --out "$out/encode-prefill-graphs.jsonl"
}

states() { bench bench_encode 400 --piece states --out "$out/encode.jsonl"; }

rest() {
  bench bench_toploc 290 --out "$out/toploc.jsonl"
  bench bench_injection 290 --hidden-size 4096 --out "$out/injection.jsonl"
}

small() {
  bench bench_candidates 60 --out "$out/candidates.jsonl"
  timeout 60 python3 benchmarks/bench_pool_rows.py --out "$out/pool.jsonl" --tiles 32/64/4 64/64/4 64/128/8
}

# Which share of honest responses fails, and of cheats passes: of the tiny model, for there are no weights of a larger one.
# Cut off, it goes on where it was: the responses are kept in $out.
calibrate() {
  local tiny=python/tessera/testing/models
  local common="--attention-backend fa3 --sampling-backend pytorch --grammar-backend none --dtype bfloat16
    --cuda-graph-backend-prefill=disabled --mem-fraction-static 0.5 --max-total-tokens 60000"
  local drafts="--speculative-algorithm EAGLE --speculative-draft-model-path $tiny/tiny-eagle
    --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
  timeout 570 python3 -m tessera.cli toploc calibrate --model-path "$tiny/tiny" --responses 250 --at-once 9 \
    --honest '' --honest '--attention-backend triton' --honest '--disable-cuda-graph' --honest "$drafts" \
    --server-args "$common" --keep "$out/toploc-responses.jsonl" --output "$out/toploc-calibrate.json" \
    --plot "$out/toploc-calibrate.png"
}

moe() { experts moe; }

fp8() { experts fp8 --fp8; }

experts() { # NAME OPTION...: the runners of a model of Qwen3-30B-A3B's shape; RUNNERS picks some
  python3 benchmarks/moe_shape.py "/tmp/m30b-$1" --layers 24 "${@:2}"
  timeout 570 python3 benchmarks/bench_moe.py --model "/tmp/m30b-$1" --out "$out/$1.jsonl" \
    ${RUNNERS:+--backends $RUNNERS} "${server[@]}" 2>&1 | grep --line-buffered -v 'server starting' | tail -n 40
}

tiny_moe() {
  timeout 570 python3 benchmarks/bench_moe.py --model python/tessera/testing/models/tiny-moe --out "$out/tiny-moe.jsonl" \
    --loads 128/64/32 ${RUNNERS:+--backends $RUNNERS} -- "${server[@]:3}" 2>&1 |
    grep --line-buffered -v 'server starting' | tail -n 40
}

moe_steps() {
  python3 benchmarks/moe_shape.py /tmp/m30b-moe --layers 24
  python3 benchmarks/moe_shape.py /tmp/m30b-draft --draft
  timeout 570 python3 benchmarks/bench_moe_steps.py --model /tmp/m30b-moe --draft /tmp/m30b-draft \
    --out "$out/moe-steps.jsonl" --loads 128/256/16/20 128/256/64/20 "${server[@]}" \
    --speculative-draft-attention-backend triton 2>&1 | grep --line-buffered -v 'server starting' | tail -n 40
}

pair() { python3 -m pytest -o minversion=7 -q -s -p no:cacheprovider tests/gpu/test_tensor_parallel.py 2>&1 | tee "$out/pair.log"; }

# Several processes at a time, each with servers of its own: what is measured here is right or wrong, not fast.
suite() { # NAME ARGUMENT...: start it, its output and its servers' logs in /tmp/suites
  mkdir -p "/tmp/suites/$1"
  timeout -s INT 540 python3 -m pytest -o minversion=7 -q -s -p no:cacheprovider --server-log-dir "/tmp/suites/$1" \
    "${@:2}" >"/tmp/suites/$1.log" 2>&1 &
}

suites_end() { # NAME: wait for all, pack the logs, say what they found
  wait
  tar -C /tmp/suites -cJf "$out/$1.tar.xz" .
  grep -a -H 'MEASURED\|passed\|failed\|^FAILED\|^ERROR\|^E  ' /tmp/suites/*.log | cut -c 1-300
  rm -r /tmp/suites
}

tests() {
  suite kernels tests/gpu/test_reader.py tests/gpu/test_pool_rows.py tests/kernels
  suite fingerprints tests/gpu/test_toploc.py -k "not exact"
  suite exact tests/gpu/test_toploc.py -k exact
  suite injection tests/gpu/test_injection.py tests/gpu/test_injection_lora.py
  suite tilespec tests/gpu/test_tilespec.py -k "not dice"
  suite tilespec-fa3 tests/gpu/test_tilespec.py -k "dice and fa3"
  suite tilespec-triton tests/gpu/test_tilespec.py -k "dice and triton"
  suites_end tests
}

more_tests() {
  suite embeddings-fa3 tests/gpu/test_embeddings.py -k fa3
  suite embeddings-triton tests/gpu/test_embeddings.py -k triton
  suite moe tests/gpu/test_moe.py
  suite fa3-chain tests/gpu/test_speculative.py -k "fa3 and not tree"
  suite fa3-tree tests/gpu/test_speculative.py -k "fa3 and tree"
  suite triton-chain tests/gpu/test_speculative.py -k "triton and not tree"
  suite triton-tree tests/gpu/test_speculative.py -k "triton and tree"
  suites_end more-tests
}

for step in "$@"; do
  echo "== $step, $(date +%T)"
  "$step"
done
