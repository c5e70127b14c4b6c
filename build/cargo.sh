#!/usr/bin/env bash
# cargo.sh BINARY...: builds Rust programs of this repository and copies them to bin/.
set -euo pipefail
cd "$(dirname "$0")/.."

# build BINARY...: builds programs with one call of cargo, so that crates are compiled beside each other.
build() {
  local args=()
  for binary in "$@"; do args+=(--bin "$binary"); done
  cargo build --quiet --release --locked "${args[@]}"
}

[ -d target/release ] || echo "==> Building $* (5 minutes the first time)"
gateway="" others=()
for binary in "$@"; do
  if [ "$binary" = kube-gateway ]; then gateway=$binary; else others+=("$binary"); fi
done
[ ${#others[@]} = 0 ] || build "${others[@]}"
# Link-time optimisation over all crates at once makes a request through kube-gateway cheaper on average (ADR 16). It
# compiles all its crates again, so the other programs are built without it, and `make test` builds all without it.
[ -z "$gateway" ] || CARGO_PROFILE_RELEASE_LTO=${CARGO_PROFILE_RELEASE_LTO:-fat} build "$gateway"
mkdir -p bin
for binary in "$@"; do
  # Replace the file only if it has changed. `install` creates a new file, so running processes keep
  # the old one.
  cmp -s "target/release/$binary" "bin/$binary" || install "target/release/$binary" "bin/$binary"
done
