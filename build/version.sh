#!/usr/bin/env bash
# Prints the version of this source tree for --version: a tag or the commit.
set -euo pipefail
git -C "$(dirname "$0")" describe --tags --always --dirty 2>/dev/null || echo dev
