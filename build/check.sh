#!/usr/bin/env bash
# Checks format, lints, import circles and documents. It changes no file.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --check
cargo clippy --quiet --workspace --all-targets --locked -- --deny warnings
cargo run --quiet --locked -p module-cycles -- crates/* test/fuzz tools/module-cycles

unformatted=$(gofmt -l cmd internal pkg test tools)
if [ -n "$unformatted" ]; then
  echo "not formatted, run gofmt -w: $unformatted" >&2
  exit 1
fi
go vet ./...
go tool staticcheck ./...
go run ./tools/checkdocs
