# shellcheck shell=bash
# Functions for the scripts that run Kubernetes' own tests. The scripts source this file.

# copy_module MODULE SCRATCH: copies the module, in the version that go.mod pins, to a
# folder in SCRATCH and sets version, source and copy (the folder). It copies because
# the module cache is read-only and shared. It keeps one copy per version so that the
# tests are compiled only once. `go list` does not know the folder of a module that was not downloaded.
copy_module() {
  go mod download "$1"
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

# replace_module MODULE SCRATCH: writes SCRATCH/go.mod, the go.mod of this repository with MODULE
# replaced by the copy that copy_module made. With -modfile SCRATCH/go.mod, Kubernetes' tests can
# import packages of this repository, and are built with the same versions of all modules.
replace_module() {
  cp go.sum "$2/go.sum"
  cp go.mod "$2/go.mod"
  go mod edit -replace "$1=$copy" "$2/go.mod"
}

# store_as_etcd STORE SCRATCH: makes STORE (mem_etcd or etcd) SCRATCH/store/etcd, because Kubernetes' tests start the etcd
# that they find in PATH.
store_as_etcd() {
  mkdir -p "$2/store"
  ln -sf "$1" "$2/store/etcd"
}

# require_program FILE VARIABLE: exits with 2 if FILE is not an executable.
require_program() {
  if [[ ! -x $1 ]]; then
    echo "${0##*/}: no program at $1: build it, or set $2" >&2
    exit 2
  fi
}

# packages_of: reads the output of go test -json and prints "pass|fail PACKAGE" for each
# package that finishes.
packages_of() {
  sed -unE 's/^\{"Time":"[^"]*","Action":"(pass|fail)","Package":"([^"]*)","Elapsed".*/\1 \2/p'
}

# tests_of LOG: prints "pass|fail|skip PACKAGE TEST SECONDS" for each result in the output
# of go test -json; TEST is "-" for the package itself. Output that a test prints cannot
# match, because in its lines other fields follow the names.
tests_of() {
  sed -nE '
    s/^\{"Time":"[^"]*","Action":"(pass|fail|skip)","Package":"([^"]*)","Test":"(([^"\\]|\\.)*)","Elapsed":([0-9.e-]*).*/\1 \2 \3 \5/p
    s/^\{"Time":"[^"]*","Action":"(pass|fail|skip)","Package":"([^"]*)","Elapsed":([0-9.e-]*).*/\1 \2 - \3/p
  ' "$1"
}

# filtered FLAG...: prints true if these flags of go test leave out tests.
filtered() {
  local flag
  for flag in "$@"; do
    case $flag in -run | -run=* | --run | --run=* | -short | --short | -skip | -skip=*) echo true && return ;; esac
  done
  echo false
}
