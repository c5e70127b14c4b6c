#!/usr/bin/env bash
# cargo.sh BINARY...: builds Rust programs of this repository and copies them to bin/.
#
#   RUST_PROFILE   profile of cargo (release). With checked, which `make test` uses, the tests are compiled with the
#                  programs: dependencies have the features that tests need, and would be compiled again for these.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=${RUST_PROFILE:-release}
out=${CARGO_TARGET_DIR:-target}/$profile

# build BINARY...: builds programs with one call of cargo, so that crates are compiled beside each other.
build() {
  local args=()
  for binary in "$@"; do args+=(--bin "$binary"); done
  cargo build --quiet --profile "$profile" --locked "${args[@]}"
}

[ -d "$out" ] || echo "==> Building $* (5 minutes the first time)"
if [ "$profile" = checked ]; then
  cargo build --quiet --profile "$profile" --locked --workspace --bins --tests
else
  gateway="" others=()
  for binary in "$@"; do
    if [ "$binary" = kube-gateway ]; then gateway=$binary; else others+=("$binary"); fi
  done
  [ ${#others[@]} = 0 ] || build "${others[@]}"
  # Link-time optimisation over all crates at once makes a request through kube-gateway cheaper on average (ADR 16). It
  # compiles all its crates again, so the other programs are built without it.
  [ -z "$gateway" ] || CARGO_PROFILE_RELEASE_LTO=fat build "$gateway"
fi
mkdir -p bin
for binary in "$@"; do
  # Replace the file only if it has changed. `install` creates a new file, so running processes keep
  # the old one.
  cmp -s "$out/$binary" "bin/$binary" || install "$out/$binary" "bin/$binary"
done
