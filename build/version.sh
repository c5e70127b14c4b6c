#!/usr/bin/env bash
# Prints the version of this source tree for --version: the output of `git describe`, which is the
# tag or the commit, or dev if the source is not in a git repository.
set -euo pipefail
git -C "$(dirname "$0")" describe --tags --always --dirty 2>/dev/null || echo dev
