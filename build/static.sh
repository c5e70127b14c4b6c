#!/usr/bin/env bash
# static.sh PROGRAM...: builds static programs, which need no shared libraries, into target/static, for images, archives
# and packages. Rust programs are linked with glibc's static library (in Debian: libc6-dev).
set -euo pipefail
cd "$(dirname "$0")/.."
out=target/static
mkdir -p "$out"

# rust PROGRAM: the target is named so that build scripts and procedural macros, which need shared libraries, do not get
# the flags. Paths of this machine are not part of the program.
rust() {
  local target
  target=$(rustc -vV | sed -n 's/^host: //p')
  # As in cargo.sh.
  if [ "$1" = kube-gateway ]; then export CARGO_PROFILE_RELEASE_LTO=fat; else unset CARGO_PROFILE_RELEASE_LTO; fi
  RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=$PWD=. --remap-path-prefix=${CARGO_TARGET_DIR:-$PWD/target}=target \
    --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo" \
    CARGO_PROFILE_RELEASE_STRIP=debuginfo \
    cargo build --quiet --release --locked --target "$target" --bin "$1"
  install "${CARGO_TARGET_DIR:-target}/$target/release/$1" "$out/$1"
}

# go PROGRAM: a Go program that does not use cgo is static.
go_program() {
  if [ "$1" = k1m ]; then
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(build/version.sh)" -o "$out/$1" "./cmd/$1"
  else
    CGO_ENABLED=0 GOFLAGS=-trimpath OUT=$out build/go.sh "$1" "./cmd/$1"
  fi
}

for program in "$@"; do
  echo "==> Building $program as static program"
  if [ -d "cmd/$program" ]; then go_program "$program"; else rust "$program"; fi
done
