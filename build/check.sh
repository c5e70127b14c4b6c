#!/usr/bin/env bash
# Checks format, lints, import cycles, and links and commands in documents. Changes no files.
set -euo pipefail
cd "$(dirname "$0")/.."

# `make test` sets the profile of its programs, whose build scripts and procedural macros are then used here.
profile=${RUST_PROFILE:-dev}
cargo fmt --check
cargo clippy --quiet --profile "$profile" --workspace --all-targets --locked -- --deny warnings
cargo run --quiet --profile "$profile" --locked -p module-cycles -- crates/* test/fuzz tools/module-cycles

unformatted=$(gofmt -l cmd internal pkg test tools)
if [ -n "$unformatted" ]; then
  echo "these files are not formatted; run gofmt -w on them:" $unformatted >&2
  exit 1
fi
go vet ./...
go tool staticcheck ./...
go run ./tools/checkdocs
