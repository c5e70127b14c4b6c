#!/bin/sh
# Runs a test program in a network namespace of its own if possible, because etcd's tests use fixed ports from 20,000 on,
# which belong to other tests and to clusters here.
if unshare --net true 2>/dev/null; then
  exec unshare --net -- sh -c 'ip link set lo up && exec "$@"' sh "$@"
elif unshare --map-root-user --net true 2>/dev/null; then
  exec unshare --map-root-user --net -- sh -c 'ip link set lo up && exec "$@"' sh "$@"
fi
echo "no network namespace: ports from 20,000 on must be free"
exec "$@"
