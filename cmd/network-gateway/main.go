// Command network-gateway gives IPv4 to nodes that have only IPv6. "network-gateway --help" explains it.
package main

import (
	"os"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/app"
)

func main() { os.Exit(app.Execute(os.Args[1:], os.Stderr)) }
