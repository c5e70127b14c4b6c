#!/usr/bin/env bash
# cargo.sh BINARY...: builds this repository's Rust programs into bin/.
set -euo pipefail
cd "$(dirname "$0")/.."

args=()
for binary in "$@"; do args+=(--bin "$binary"); done
[ -d target/release ] || echo "==> Building $* (2-3 minutes the first time)"
cargo build --quiet --release --locked "${args[@]}"
mkdir -p bin
for binary in "$@"; do
  # Replace the file only if it changed: running clusters keep the old file open.
  cmp -s "target/release/$binary" "bin/$binary" || install "target/release/$binary" "bin/$binary"
done
