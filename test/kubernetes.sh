# shellcheck shell=bash
# What the scripts share that run Kubernetes' own tests; they source it.

# copy_module MODULE SCRATCH: sets version, source and copy, a folder in SCRATCH with
# the module in the version that go.mod pins. A copy, because the module cache is
# read-only and shared. One per version, and kept, because the tests are then compiled
# only once.
copy_module() {
  read -r version source < <(go list -m -f '{{.Version}} {{.Dir}}' "$1")
  copy=$2/${1##*/}@$version
  if [[ ! -d $copy ]]; then
    mkdir -p "$2"
    rm -rf "$copy.partial"
    cp -r "$source" "$copy.partial"
    chmod -R u+w "$copy.partial"
    mv "$copy.partial" "$copy"
  fi
}

# require_program FILE VARIABLE: ends the script unless the program is there.
require_program() {
  if [[ ! -x $1 ]]; then
    echo "${0##*/}: no program at $1: build it, or set $2" >&2
    exit 2
  fi
}

# packages_of: of what go test -json prints, "pass|fail package" as they end.
packages_of() {
  sed -unE 's/^\{"Time":"[^"]*","Action":"(pass|fail)","Package":"([^"]*)","Elapsed".*/\1 \2/p'
}

# tests_of LOG: "pass|fail|skip package test seconds", "-" standing for the package
# itself. Output of tests cannot match: it follows the names.
tests_of() {
  sed -nE '
    s/^\{"Time":"[^"]*","Action":"(pass|fail|skip)","Package":"([^"]*)","Test":"(([^"\\]|\\.)*)","Elapsed":([0-9.e-]*).*/\1 \2 \3 \5/p
    s/^\{"Time":"[^"]*","Action":"(pass|fail|skip)","Package":"([^"]*)","Elapsed":([0-9.e-]*).*/\1 \2 - \3/p
  ' "$1"
}

# filtered FLAG...: whether flags of go test leave tests out.
filtered() {
  local flag
  for flag in "$@"; do
    case $flag in -run | -run=* | --run | --run=* | -short | --short | -skip | -skip=*) echo true && return ;; esac
  done
  echo false
}
