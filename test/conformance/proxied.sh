#!/usr/bin/env bash
# mem_etcd behind etcd-proxy, as one program, so that Kubernetes' own suites can be
# recorded (see recorded.sh). Settings come as etcd's environment or flags. Each server
# leaves a recording in TRACE_DIR.
set -euo pipefail

bin=$(cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../../bin" && pwd)
: "${TRACE_DIR:?says where recordings go}"
listen=${ETCD_LISTEN_CLIENT_URLS:-}
flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --listen-client-urls) listen=$2 && shift ;;
    # That of a cluster: mem_etcd has none, and refuses it.
    --listen-peer-urls) shift ;;
    *) flags+=("$1") ;;
  esac
  shift
done
: "${listen:?--listen-client-urls or ETCD_LISTEN_CLIENT_URLS says where to listen}"
socket=$(mktemp -u "${TMPDIR:-/tmp}/proxied-XXXXXX")

# The store ends with the proxy, which takes this process over.
ETCD_LISTEN_CLIENT_URLS=unix://$socket setpriv --pdeathsig KILL "$bin/mem_etcd" "${flags[@]}" &
for _ in $(seq 500); do
  [ -S "$socket" ] && break
  sleep 0.01
done
exec "$bin/etcd-proxy" --listen "$listen" --endpoints "unix://$socket" \
  --record "$TRACE_DIR/$$.jsonl.zst"
