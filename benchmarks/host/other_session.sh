#!/usr/bin/env bash
# Another SGLang with its own torch on a borrowed GPU host: does its stack load, does the stock server start, do our suites
# pass? What travels is made by pack_other.py; README.md has the calls. There, from the repository's root:
#
#   other_session.sh part N    keep what .gpu23-N brought; `overlay` is a part, too                                5 s
#   other_session.sh start     `run` in the background, in a copy of the tree; then a look
#   other_session.sh look      wait LOOK_SECONDS, bring back what there is; fails once nothing runs
#   other_session.sh run       unpack, check, STEPS; results in /tmp/out/other
#   other_session.sh check     each part of the stack in a process of its own; what fails says why
#
# STACK=own or overlay says which stack serves; else its own where `check` passes, and the overlay over /tmp/gpu/site where
# it does not; STACK=earlier is /tmp/gpu/site itself, whose results are in /tmp/out/earlier. GPUS says which GPUs the suites
# have, as in "0 1"; by default all. STEPS are `stock ours suites`, and any of gpu_session.sh; tile_train, and one with `&`
# behind it, goes on beside the next ones until `suites` waits for all. Where the stock server does not start, the rest is
# left out. SUITES picks suites by name, AT_ONCE says how many run side by side.
set -uo pipefail
home=/tmp/gpu23
out=/tmp/out/other
[[ ${STACK:-} != earlier ]] || out=/tmp/out/earlier
logs=$out/suites
port=31000

part() {
  mkdir -p $home/parts && cp -r ".gpu23-$1"/* $home/parts/ && ls $home/parts
}

start() {
  mkdir -p /tmp/mine $out
  tar -c --exclude='./.gpu*' --exclude=./.git --exclude='./.venv*' . | tar -x -C /tmp/mine
  [[ -e /tmp/m8b ]] || python3 .gpu-tools/mkmodel.py /tmp/m8b 8b .gpu-tools/tokenizer
  cd /tmp/mine || exit
  setsid bash benchmarks/host/other_session.sh run >>$out/log.txt 2>&1 </dev/null &
  sleep 3
  LOOK_SECONDS=${LOOK_SECONDS:-60} look
}

look() {
  local _
  for _ in $(seq "${LOOK_SECONDS:-100}"); do pgrep -f 'other_session.sh run' >/dev/null || break; sleep 1; done
  LOOK_SECONDS=1 LOOK_LINES=${LOOK_LINES:-40} bash benchmarks/host/gpu_chains.sh look
  pgrep -f 'other_session.sh run' >/dev/null || { echo "nothing runs here any more" && exit 1; }
}

extract() { # FOLDER: the archive on standard input
  PYTHONPATH=$home/parts python3 -c '
import sys, tarfile, zstandard
stream = zstandard.ZstdDecompressor(max_window_size=2**31).stream_reader(sys.stdin.buffer)
with tarfile.open(fileobj=stream, mode="r|") as archive:
    archive.extractall(sys.argv[1], filter="fully_trusted")' "$1"
}

unpack() {
  local host library
  host=$(python3 -c 'import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("torch").origin).parents[1])')
  echo "the host's packages: $host"
  if [[ ! -e $home/unpacked && -e $home/parts/part.00 ]]; then
    mkdir -p $home/site
    cat $home/parts/part.* | extract $home/site || return
    [[ ! -e $home/parts/sampling.so ]] || install -D $home/parts/sampling.so $home/site/flashinfer/data/aot/sampling/sampling.so
    # Libraries that are not carried lie where the carried ones look for them.
    for library in "$host"/nvidia/*/; do
      [[ -e $home/site/nvidia/$(basename "$library") ]] || ln -s "${library%/}" "$home/site/nvidia/"
    done
    mkdir -p $home/site/triton/backends/nvidia/bin
    # The assembler of triton 3.8 is the newer one of 3.6.
    ln -sf "$host/triton/backends/nvidia/bin/ptxas-blackwell" $home/site/triton/backends/nvidia/bin/ptxas
    for library in ptxas-blackwell cuobjdump nvdisasm; do
      ln -sf "$host/triton/backends/nvidia/bin/$library" $home/site/triton/backends/nvidia/bin/
    done
    [[ ! -e $home/parts/extra ]] || cp -r $home/parts/extra/. $home/site/ # what the archive lacks
    rm -rf $home/site/sglang_tessera-* # the checkout's own metadata counts
    timeout 90 python3 -m compileall -qq -j 0 $home/site >/dev/null 2>&1 # or each first import takes half a minute
    # The models of 0.5.23 import CUTLASS, which a venv finds by a .pth file; PYTHONPATH reads none.
    ln -s $home/site/nvidia_cutlass_dsl/dsl_packages/* $home/site/
    touch $home/unpacked
    find $home/site -name '*.so*' -type f -size +100k -exec ldd {} + 2>/dev/null | grep 'not found' | sort | uniq -c
  fi
  if [[ ! -e $home/overlay && -e $home/parts/overlay.tar.zst && -e /tmp/gpu/site/sglang ]]; then
    mkdir $home/new && extract $home/new <$home/parts/overlay.tar.zst || return
    cp -al /tmp/gpu/site $home/overlay
    # Whole packages are replaced: two versions of one would mix.
    (cd $home/new && for library in *; do
      case $library in
        *.dist-info) rm -rf $home/overlay/"${library%%-*}"-*.dist-info ;;
        nvidia | google) ;;
        *) rm -rf "${home:?}/overlay/$library" ;;
      esac
    done)
    cp -rl $home/new/. $home/overlay/
    [[ ! -e $home/parts/extra ]] || cp -r $home/parts/extra/. $home/overlay/
    rm -rf $home/overlay/sglang_tessera-*
  fi
}

try() { # NAME CODE: run it; what it says, or its last lines
  local name=$1 before=$SECONDS
  timeout 60 python3 -c "$2" >$out/check-"$name".txt 2>&1
  local status=$?
  echo "-- $name: exit $status, $((SECONDS - before)) s"
  tail -n 15 $out/check-"$name".txt | cut -c 1-400
  return $status
}

check() { # SITE: status 0 if all that a server needs is there
  local failed=0
  export PYTHONPATH=$1
  try torch '
import torch
print(torch.__version__, torch.version.cuda, torch.__file__, torch.cuda.get_device_name(0))
a = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
print("product", ((a @ a).float() - a.float() @ a.float()).abs().max().item(), "of", (a @ a).abs().max().item())
x = torch.randn(8, 512, device="cuda")
print("sum, sort, softmax", x.sum().item(), x.sort().values[0, 0].item(), x.softmax(-1).sum().item(), torch.multinomial(x.softmax(-1), 2).shape)
print("attention", torch.nn.functional.scaled_dot_product_attention(*[a.view(1, 8, 64, 512)] * 3).shape)
g = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with torch.cuda.graph(g):
    y = x * 2
g.replay(); torch.cuda.synchronize(); print("graph", bool((y == x * 2).all()))' || failed=1
  try triton '
import torch, triton, triton.language as tl, pathlib
pathlib.Path("/tmp/kernel_of_check.py").write_text("""
import triton, triton.language as tl
@triton.jit
def double(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)
""")
import sys; sys.path.insert(0, "/tmp")
from kernel_of_check import double
x = torch.arange(1000.0, device="cuda"); y = torch.empty_like(x)
double[(4,)](x, y, 1000, 256)
print(triton.__version__, triton.__file__, bool((y == 2 * x).all()))' || failed=1
  try sgl_kernel '
import sgl_kernel, torch
print(sgl_kernel.__version__, sgl_kernel.__file__)
x = torch.randn(4, 256, device="cuda", dtype=torch.bfloat16); w = torch.ones(256, device="cuda", dtype=torch.bfloat16)
print(sgl_kernel.rmsnorm(x, w).float().std().item(), "is about 1")' || failed=1
  try flash_attention_3 '
import torch
from sgl_kernel.flash_attn import flash_attn_varlen_func
q, k, v = (torch.randn(64, 4, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
n = torch.tensor([0, 64], device="cuda", dtype=torch.int32)
o = flash_attn_varlen_func(q, k, v, cu_seqlens_q=n, cu_seqlens_k=n, max_seqlen_q=64, max_seqlen_k=64, causal=True)
o = o[0] if isinstance(o, tuple) else o
e = torch.nn.functional.scaled_dot_product_attention(*[t.transpose(0, 1)[None].float() for t in (q, k, v)], is_causal=True)[0].transpose(0, 1)
print("differs by", (o.float() - e).abs().max().item())' || failed=1
  try flashinfer 'import flashinfer, flashinfer.sampling; print(flashinfer.__version__, flashinfer.__file__)' || failed=1
  try nccl '
import os, torch, torch.distributed as d
d.init_process_group("nccl", init_method="tcp://127.0.0.1:29655", rank=0, world_size=1)
x = torch.ones(4, device="cuda"); d.all_reduce(x); print(torch.cuda.nccl.version(), x.sum().item())'
  try sglang 'import sglang, sglang.launch_server, sglang.srt.managers.scheduler; print(sglang.__version__, sglang.__file__)' || failed=1
  try models 'import sglang.kernels.ops.gemm.cutedsl_dual_gemm as gemm; print(gemm.cutlass.__file__)' || failed=1
  # What SGLang's speculation imports when it captures graphs.
  try flash_mla 'import sglang.srt.layers.attention.flashmla_backend, flash_mla; print(flash_mla.__file__)' || failed=1
  try deep_gemm 'import deep_gemm; print(deep_gemm.__file__)'
  return $failed
}

serve() { # NAME BODY OPTION...: start a server of 8B shape, send it one request, say what it is, stop it
  local name=$1 body=$2 before=$SECONDS server
  setsid python3 -m sglang.launch_server --model-path /tmp/m8b --load-format dummy --dtype bfloat16 --port $port \
    --max-total-tokens 16384 "${@:3}" >"$out/$name-server.log" 2>&1 </dev/null &
  server=$!
  until curl -sf -o /dev/null http://127.0.0.1:$port/health; do
    if ! kill -0 $server 2>/dev/null || ((SECONDS - before > ${START_SECONDS:-400})); then
      echo "-- $name: NOT READY after $((SECONDS - before)) s"
      grep -n -A 25 -m 1 Traceback "$out/$name-server.log" | cut -c 1-300
      tail -n 15 "$out/$name-server.log" | cut -c 1-300
      kill -KILL -- -$server
      return 1
    fi
    sleep 1
  done
  echo "-- $name: ready after $((SECONDS - before)) s"
  curl -s -m 60 -H 'Content-Type: application/json' -d "$body" http://127.0.0.1:$port/generate | cut -c 1-700
  echo
  curl -s -m 60 http://127.0.0.1:$port/server_info >"$out/$name-info.json"
  python3 -c '
import json, sys
info = json.load(open(sys.argv[1]))
print({name: info.get(name) for name in ("version", "attention_backend", "sampling_backend", "cuda_graph_backend_prefill")})
tessera = info.get("tessera") or {}
print("on:", tessera.get("on"), "calls:", json.dumps(tessera.get("calls"))[:3000])' "$out/$name-info.json"
  kill -TERM -- -$server
  for _ in {1..20}; do kill -0 -- -$server 2>/dev/null || return 0; sleep 1; done
  kill -KILL -- -$server
}

suite() { # NAME ARGUMENT...: on one GPU after the other, or on all with TWO=1
  local name=$1
  [[ -z ${SUITES:-} || " $SUITES " == *" $name "* ]] || return
  turn=$(((${turn:--1} + 1) % ${#gpus[@]}))
  while (($(jobs -rp | wc -l) >= ${AT_ONCE:-1})); do wait -n; done
  mkdir -p "$logs/$name"
  (
    before=$SECONDS
    ((${TWO:-0})) || export CUDA_VISIBLE_DEVICES=${gpus[turn]}
    OMP_NUM_THREADS=2 timeout -s INT -k 30 "${SUITE_SECONDS:-450}" python3 -m pytest -o minversion=7 -q -s -p no:cacheprovider \
      --server-log-dir "$logs/$name" "${@:2}" >"$logs/$name.log" 2>&1
    echo "-- $name: exit $?, $((SECONDS - before)) s; $(grep -a 'passed\|failed\|error' "$logs/$name.log" | tail -n 1 | cut -c 1-200)"
    grep -a 'MEASURED\|^FAILED\|^ERROR\|^E  ' "$logs/$name.log" | grep -v 'server starting' | cut -c 1-300 | head -n 20
  ) &
}

suites() {
  local architecture name turn gpus
  read -ra gpus <<<"${GPUS:-$(nvidia-smi --query-gpu=index --format=csv,noheader | tr '\n' ' ')}"
  local dice=tests/gpu/test_tilespec.py::test_dice_do_not_change_the_tokens
  suite embeddings-fa3 tests/gpu/test_embeddings.py -k "fa3 and breakable"
  suite embeddings-triton tests/gpu/test_embeddings.py -k triton
  suite fingerprints tests/gpu/test_toploc.py -k "exact or largest"
  suite injection tests/gpu/test_injection.py
  suite injection-lora tests/gpu/test_injection_lora.py
  suite fa3-chain tests/gpu/test_speculative.py -k "fa3 and not tree"
  suite fa3-tree tests/gpu/test_speculative.py -k "fa3 and tree"
  suite fa3-eagle "$dice[fa3-bfloat16-eagle]"
  suite trees-triton tests/gpu/test_tilespec.py -k "trees and triton"
  suite sampled-fa3 tests/gpu/test_tilespec.py -k "what_is_sampled and fa3 and not rejecting"
  suite sampled-rejecting tests/gpu/test_tilespec.py -k "what_is_sampled and rejecting"
  suite honest tests/gpu/test_toploc.py -k honest
  suite host-cache tests/gpu/test_hicache.py -k plain
  suite host-cache-drafts tests/gpu/test_hicache.py -k drafts
  for name in {16,64,128}-{plain,chain,tree} 16-{plain,chain}-on-host; do
    suite "kv-$name" "tests/gpu/test_kv_layouts.py::test_pages[$name]"
  done
  for name in fp8-kv fp8-weights awq; do suite "$name" "tests/gpu/test_kv_layouts.py::test_quantized[$name]"; done
  for name in stages dp-attention; do
    TWO=$((${#gpus[@]} - 1)) suite "$name" "tests/gpu/test_deployments.py::test_canaries_and_fingerprints[$name]"
  done
  for architecture in Qwen3-Next Qwen3.5 Falcon-H1 "Granite 4 H" Qwen2-MoE GPT-OSS "Llama 4" DeepSeek-V2 "Gemma 2" "Gemma 3" Cohere2 Mellum; do
    name=${architecture// /-}
    suite "$name" --models-table "$logs/$name.json" \
      "tests/engine_cpu/test_models.py::test_rows_vectors_and_fingerprints[$architecture]"
  done
  suite kernels tests/kernels tests/gpu/test_reader.py tests/gpu/test_pool_rows.py tests/gpu/test_acceptance.py
  wait
}

choose() { # the folder that serves, in $site
  site=/tmp/gpu/site
  [[ ${STACK:-} != earlier ]] || return 0
  site=$home/site
  if [[ ${STACK:-} != overlay && -e $home/unpacked ]] && { [[ ${STACK:-} == own ]] || check $home/site; }; then
    return 0
  fi
  echo "== not on its own stack: the overlay, for correctness only"
  site=$home/overlay
  [[ -e $site/sglang ]] || { echo "there is none; bring .gpu-0 to .gpu-5 and .gpu23-overlay, and start again" && return 1; }
  export SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK=1
  check "$site"
  return 0
}

run() {
  local site step
  mkdir -p $out
  export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  echo "== unpack, $(date +%T)"
  [[ ${STACK:-} == earlier ]] || unpack || exit
  echo "== check, $(date +%T)"
  choose || exit
  source benchmarks/host/gpu_host.sh "$site" || exit
  for step in ${STEPS:-stock ours suites}; do
    echo "== $step with $site, $(date +%T)"
    case $step in
      stock) PYTHONPATH=$site serve stock '{"text": "def add(a, b):", "sampling_params": {"max_new_tokens": 8}}' || exit ;;
      ours) # beside the suites
        serve ours '{"text": "def add(a, b):", "sampling_params": {"max_new_tokens": 8}, "return_embedding": {"pooling": "mean", "dimensions": 4}}' \
          --enable-return-hidden-states &
        ;;
      suites) suites ;;
      tile_train) SITE=$site OUT=$out/pair bash benchmarks/host/gpu_session.sh tile_train >$out/train.txt 2>&1 & ;;
      *\&) SITE=$site OUT=$out/figures bash benchmarks/host/gpu_session.sh "${step%&}" & ;;
      *) SITE=$site OUT=$out/figures bash benchmarks/host/gpu_session.sh "$step" ;;
    esac
  done
  echo "== done, $(date +%T)"
}

"$@"
