// Command network-gateway gives IPv4 to nodes that have only IPv6. "network-gateway --help" explains it.
package main

import (
	"os"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/app"
)

// version is set at build time with -ldflags "-X main.version=…".
var version = "dev"

func main() { os.Exit(app.Execute(version, os.Args[1:], os.Stderr)) }
