#!/bin/sh
# Starts mem_etcd in place of etcd. etcd's tests set these flags of etcd in every test, also where they do not matter:
#   --snapshot-count               mem_etcd counts bytes (--snapshot-log-bytes), because a snapshot has all keys
#   --strict-reconfig-check=false  mem_etcd has no member commands yet
# mem_etcd refuses them, so they are left out. All other flags are passed on.
for arg; do
  shift
  case $arg in
    --snapshot-count=* | --strict-reconfig-check=false) ;;
    *) set -- "$@" "$arg" ;;
  esac
done
store=$ETCD_TESTS_STORE
unset ETCD_TESTS_STORE
exec "$store" "$@"
