#!/bin/sh
# Starts mem_etcd in place of etcd. etcd's tests set this flag of etcd in every test, also where it does not matter:
#   --snapshot-count  mem_etcd counts bytes (--snapshot-log-bytes), because a snapshot has all keys
# mem_etcd refuses it, so it is left out. All other flags are passed on.
for arg; do
  shift
  case $arg in
    --snapshot-count=*) ;;
    *) set -- "$@" "$arg" ;;
  esac
done
store=$ETCD_TESTS_STORE
unset ETCD_TESTS_STORE
exec "$store" "$@"
