#!/usr/bin/env bash
# mem_etcd behind etcd-proxy, as one program: Kubernetes' own suites are recorded with
#   TRACE_DIR=/tmp/traces MEM_ETCD=test/conformance/proxied.sh test/conformance/run.sh
# Each server leaves a recording in TRACE_DIR. Settings come as etcd's environment.
set -euo pipefail

bin=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../bin" && pwd)
: "${TRACE_DIR:?says where recordings go}"
: "${ETCD_LISTEN_CLIENT_URLS:?says where to listen}"
socket=$(mktemp -u "${TMPDIR:-/tmp}/proxied-XXXXXX")

# The store ends with the proxy, which takes this process over.
ETCD_LISTEN_CLIENT_URLS=unix://$socket setpriv --pdeathsig KILL "$bin/mem_etcd" &
for _ in $(seq 500); do
  [ -S "$socket" ] && break
  sleep 0.01
done
exec "$bin/etcd-proxy" --listen "$ETCD_LISTEN_CLIENT_URLS" --endpoints "unix://$socket" \
  --record "$TRACE_DIR/$$.jsonl.zst"
