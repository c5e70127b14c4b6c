// Command k1m runs a real Kubernetes control plane with up to a million simulated nodes on one machine.
package main

import (
	"os"

	"github.com/k8s-1m/k8s-1m/internal/cluster/cli"
)

// version is set at build time with -ldflags "-X main.version=…".
var version = "dev"

func main() {
	os.Exit(cli.Main(version, os.Args[1:], os.Stdout, os.Stderr))
}
