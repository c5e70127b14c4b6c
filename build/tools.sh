#!/usr/bin/env bash
# Checks that the tools for the build are installed. Fails with a message for the first one that is
# missing or too old.
set -euo pipefail

# fail_missing TOOL INSTALLATION: says what is missing and what to install, and exits.
fail_missing() {
  echo "make: $1 is missing or too old: install $2 and run make again" >&2
  exit 1
}

# is_at_least VERSION MINIMUM: succeeds if VERSION is MINIMUM or newer.
is_at_least() {
  [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

go=$(go env GOVERSION 2>/dev/null || true)
is_at_least "${go#go}" 1.26 || fail_missing Go "Go 1.26 or newer (https://go.dev/dl)"
rust=$(cargo --version 2>/dev/null | cut -d ' ' -f 2 || true)
is_at_least "${rust:-0}" 1.90 || fail_missing Rust "Rust 1.90 or newer (https://rustup.rs)"
command -v cc >/dev/null || fail_missing "a C compiler" "gcc or clang"
command -v git >/dev/null || fail_missing git git
