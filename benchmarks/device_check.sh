#!/usr/bin/env bash
# A borrowed GPU in about four minutes: its tests, then a short benchmark, with the torch that is there.
# Usage: benchmarks/device_check.sh [cuda|rocm] [FOLDER]; JSON and the tables are left in FOLDER.
set -uo pipefail
cd "$(dirname "$0")/.."
backend=${1:-cuda}
results=${2:-results}
mkdir -p "$results"
failed=0

run() {
    local seconds=$1
    shift
    echo "== $*"
    timeout --kill-after=5 "$seconds" "$@" || { echo "== exit code $?: $*"; failed=1; }
}

python3 -m topokv devices
export TOPOKV_BACKEND=$backend TOPOKV_REQUIRE_DEVICE=1
run 85 python3 -m pytest "tests/$backend" -p no:cacheprovider \
    --json-report --json-report-file="$results/tests-$backend.json" --json-report-omit=keywords
# The published grid, where launches dominate, then a cache that takes a GB or more.
run 55 python3 -m topokv bench --device "$backend" --kv gaussian --processes 3 --max-seconds 4 \
    --output "$results/bench-$backend.json"
# Flex beside it here, where it could pay: its kernels take some seconds to compile.
run 70 python3 -m topokv bench --device "$backend" --kv gaussian --batch 8 --heads 32 --kv-heads 8 \
    --head-dim 128 --seq-len 65536 --selected-tokens 1024 4096 --processes 3 --max-seconds 4 \
    --attention flex --output "$results/bench-$backend-large.json"
run 30 python3 -m topokv report "$results" --output "$results"
exit "$failed"
