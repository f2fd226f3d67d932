#!/usr/bin/env bash
# The README's five commands, one after the other, as a user types them. Pass more overrides as arguments.
set -u
cd "$(dirname "$0")/../.."
while read -r overrides; do
    printf '\n$ python -m runner %s\n\n' "$overrides"
    # shellcheck disable=SC2086  # overrides are words
    python3 -m runner $overrides "$@" | grep -v '^\[' | sed 's/ *$//'
done <<'COMMANDS'
workload=mlp impl=compiled -m
workload=gelu impl=naive,torch,compiled,triton -m
workload=matmul workload.size=1024,2048,4096 impl=torch workload.dtype=float32,bfloat16 -m
workload=mlp workload.layers=2,3,4,5 workload.batch=256 impl=naive,compiled -m
workload=softmax workload.rows=4096 workload.cols=1000 impl=torch
COMMANDS
