#!/usr/bin/env bash
# Make a GPU host that has no package registry ready: SGLang is unpacked in SITE already; our package is installed from
# this checkout beside it. Source it: `source benchmarks/host/gpu_host.sh /tmp/gpu/site`.
site=$1
if [[ ! -d $site/sglang ]]; then
  echo "no SGLang in $site: is this another machine than the one that was prepared?" >&2
  return 1
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
meta=$(mktemp -d)
export PYTHONPATH="$site:$root/python:$root/patches:$root/sgl-kernel:$root/tests/support:$root/benchmarks:$root/benchmarks/models:$meta" HF_HUB_OFFLINE=1
TESSERA_COMMIT=$(cat /tmp/gpu23/parts/commit /tmp/gpu/parts/commit 2>/dev/null | head -n 1) && export TESSERA_COMMIT
(cd "$root" && python3 setup.py -q egg_info --egg-base "$meta")
