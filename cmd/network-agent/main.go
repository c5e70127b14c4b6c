// Command network-agent prepares a node of an IPv6-only cluster for pods with real addresses, without overlay and NAT, and
// keeps its filters up to date.
package main

import (
	"os"

	"github.com/k8s-1m/k8s-1m/internal/network/agent"
)

// version is set at build time with -ldflags "-X main.version=…".
var version = "dev"

func main() { os.Exit(agent.Main(version, os.Args[1:], os.Stdout, os.Stderr)) }
