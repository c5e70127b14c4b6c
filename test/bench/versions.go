package main

import (
	"context"
	"debug/buildinfo"
	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
	"os/exec"
	"path/filepath"
)

// versions returns the versions of the programs. It omits programs that fail: the rows that need them report
// the error.
func (l *lab) versions(ctx context.Context) map[string]string {
	versions := map[string]string{}
	for _, store := range []string{ours, etcd} {
		if output, err := exec.CommandContext(ctx, l.Program(store), "--version").Output(); err == nil {
			versions[store] = firstLine(string(output))
		}
	}
	if output, err := exec.CommandContext(ctx, filepath.Join("build", "version.sh")).Output(); err == nil {
		versions["this tree"] = firstLine(string(output))
	}
	if info, err := buildinfo.ReadFile(l.Program(storeserver.EtcdBenchmark)); err == nil {
		versions["etcd's benchmark"] = info.Main.Version
	}
	return versions
}
