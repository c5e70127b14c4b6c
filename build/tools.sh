#!/usr/bin/env bash
# Checks that the tools for the build are installed. It prints the first one that is missing.
set -euo pipefail

missing() {
  echo "make: $1 is missing or too old: install $2 and run make again" >&2
  exit 1
}

# at_least FOUND WANTED
at_least() {
  [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

go=$(go env GOVERSION 2>/dev/null || true)
at_least "${go#go}" 1.26 || missing Go "Go 1.26 or newer (https://go.dev/dl)"
rust=$(cargo --version 2>/dev/null | cut -d ' ' -f 2 || true)
at_least "${rust:-0}" 1.90 || missing Rust "Rust 1.90 or newer (https://rustup.rs)"
command -v cc >/dev/null || missing "a C compiler" "gcc or clang"
command -v git >/dev/null || missing git git
