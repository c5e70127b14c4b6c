#!/usr/bin/env bash
# cargo.sh BINARY...: builds Rust programs of this repository and copies them to bin/.
set -euo pipefail
cd "$(dirname "$0")/.."

args=()
for binary in "$@"; do args+=(--bin "$binary"); done
[ -d target/release ] || echo "==> Building $* (2-3 minutes the first time)"
# Link-time optimisation over all crates at once makes a request through kube-gateway cheaper on average (ADR 16). It
# compiles all its crates again, so the other programs are built without it.
[ "$*" != kube-gateway ] || export CARGO_PROFILE_RELEASE_LTO=fat
cargo build --quiet --release --locked "${args[@]}"
mkdir -p bin
for binary in "$@"; do
  # Replace the file only if it has changed. `install` creates a new file, so running processes keep
  # the old one.
  cmp -s "target/release/$binary" "bin/$binary" || install "target/release/$binary" "bin/$binary"
done
