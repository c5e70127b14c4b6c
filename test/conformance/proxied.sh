#!/usr/bin/env bash
# Runs mem_etcd behind etcd-proxy, so that the requests of Kubernetes' own test suites can be
# recorded (see recorded.sh). It accepts etcd's environment variables and flags like mem_etcd. Each
# run writes a trace to TRACE_DIR.
set -euo pipefail

bin=$(cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../../bin" && pwd)
: "${TRACE_DIR:?must be the directory for the traces}"
listen=${ETCD_LISTEN_CLIENT_URLS:-}
flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --listen-client-urls) listen=$2 && shift ;;
    *) flags+=("$1") ;;
  esac
  shift
done
: "${listen:?--listen-client-urls or ETCD_LISTEN_CLIENT_URLS must be set}"
socket=$(mktemp -u "${TMPDIR:-/tmp}/proxied-XXXXXX")

# The kernel kills mem_etcd when this process ends, which becomes the proxy by exec.
ETCD_LISTEN_CLIENT_URLS=unix://$socket setpriv --pdeathsig KILL "$bin/mem_etcd" "${flags[@]}" &
for _ in $(seq 500); do
  [ -S "$socket" ] && break
  sleep 0.01
done
exec "$bin/etcd-proxy" --listen "$listen" --endpoints "unix://$socket" \
  --record "$TRACE_DIR/$$.jsonl.zst"
