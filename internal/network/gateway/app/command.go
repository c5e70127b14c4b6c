// Package app is the program network-gateway: its commands and flags, and how the parts of a gateway are
// started and stopped.
//
//	command.go   commands and their help
//	options.go   flags of "serve"
//	gateway.go   the parts of a gateway
//	state.go     what a restart keeps
//	metrics.go   metrics and pages
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/client"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const rootHelp = `IPv4 for nodes that have only IPv6.

A gateway is a machine with IPv4. Each node has a WireGuard tunnel to it. Packets for IPv4
servers go through the tunnel in one of two ways, or both:

  NAT64       Pods send IPv6 to addresses in a prefix that stands for IPv4, such as
              64:ff9b::8.8.8.8. The gateway translates. DNS64 gives such addresses to
              names that have no IPv6. Pods need nothing but IPv6.
  masquerade  Each node has an IPv4 address in the tunnel, and the gateway's kernel
              masquerades it. For programs that know IPv4 addresses only.

Nodes prove themselves with the client certificate of their kubelet. There is no shared
secret. A node is connected as long as its Node object exists, its certificate is valid and
it renews its registration.

On the gateway (NAT64 with 16 addresses that are routed to this machine):

  network-gateway serve --tls-cert-file gateway.crt --tls-private-key-file gateway.key \
    --client-ca-file /etc/kubernetes/pki/ca.crt --kubeconfig gateway.kubeconfig \
    --nat64-pool 192.0.2.16/28 \
    --dns64-listen [2001:db8::53]:53 --dns64-upstream [2001:db8::1]:53

With a single IPv4 address, use a private pool and add --nat64-masquerade.

On each node:

  network-gateway join --gateway https://[2001:db8::53]:8443 --ca-file gateway-ca.crt
`

// NewCommand returns the command of the program.
func NewCommand() *cobra.Command {
	root := &cobra.Command{
		Use: "network-gateway", Short: "IPv4 for nodes that have only IPv6", Long: rootHelp,
		SilenceErrors: true, SilenceUsage: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage.Errorf("%v", err) })
	root.AddCommand(newServe(), newJoin())
	return root
}

// Execute runs the program and returns its exit code.
func Execute(version string, args []string, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	command := NewCommand()
	command.Version = version
	command.SetArgs(args)
	err := command.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "network-gateway: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	if errors.Is(err, usage.Err) || strings.HasPrefix(err.Error(), "unknown command") {
		return 2
	}
	return 1
}

func newLog(verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// gcPercent bounds the garbage in a heap that is mostly keys and sessions. GOGC takes precedence.
const gcPercent = 50

func newServe() *cobra.Command {
	var o options
	var verbose bool
	cmd := &cobra.Command{
		Use: "serve", Short: "Run a gateway", Args: noArguments,
		Long: `Run a gateway until it gets SIGTERM.

It needs the capability NET_ADMIN. It creates a TUN device (--link) with routes for the pool
and the range, turns on IPv4 forwarding, and adds the nftables table "network-gateway".

SIGTERM saves the connections of NAT64 in --state-file. The next start continues with them:
they survive if it comes before their peers give up. After a kill, those survive that are
older than --state-interval.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := o.check()
			if err != nil {
				return err
			}
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(gcPercent)
			}
			return serve(cmd.Context(), s, newLog(verbose))
		},
	}
	o.add(cmd.Flags())
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "also log failed TLS handshakes")
	return cmd
}

func newJoin() *cobra.Command {
	var c client.Config
	var verbose bool
	cmd := &cobra.Command{
		Use: "join", Short: "Connect this node to a gateway", Args: noArguments,
		Long: `Connect this node to a gateway until it gets SIGTERM.

It needs the capability NET_ADMIN. It creates a tunnel device (--link), and routes the prefix
of NAT64 into it; if the gateway masquerades, also IPv4. With several gateways, a node uses
one that its name selects, and another one if this one does not answer.

SIGTERM disconnects the node; its connections end.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(c.Gateways) == 0 || c.CA == "" {
				return usage.Errorf("--gateway and --ca-file are required")
			}
			for i, gateway := range c.Gateways {
				if !strings.HasPrefix(gateway, "https://") {
					return usage.Errorf("--gateway %q: use an address such as https://[2001:db8::1]:8443", gateway)
				}
				c.Gateways[i] = strings.TrimRight(gateway, "/")
			}
			c.Log = newLog(verbose)
			return client.Run(cmd.Context(), c)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&c.Gateways, "gateway", nil, "HTTPS addresses of gateways (required)")
	f.StringVar(&c.CA, "ca-file", "", "CA of the certificates of the gateways (required)")
	f.StringVar(&c.Certificate, "cert-file", "/var/lib/kubelet/pki/kubelet-client-current.pem", "client certificate of kubelet")
	f.StringVar(&c.Key, "key-file", "/var/lib/kubelet/pki/kubelet-client-current.pem", "key of this certificate")
	f.StringVar(&c.PrivateKeyFile, "private-key-file", "/var/lib/network-gateway/node.key", "WireGuard key of this node; made if it does not exist")
	f.StringVar(&c.Link, "link", "ng-node", "name of the tunnel device")
	f.IntVar(&c.IPv4Metric, "ipv4-metric", 4096, "metric of the IPv4 default route into the tunnel")
	f.BoolVar(&c.MasqueradePods, "masquerade-pods", true, "let pods use the IPv4 address of the node in the tunnel (nftables table network-gateway-node)")
	f.BoolVar(&c.KeepRegistration, "keep-registration", false, "stay registered after SIGTERM, for a restart that keeps connections")
	f.StringVar(&c.StatusFile, "status-file", "", "file for the gateway in use, the prefix, and the DNS64 servers, in JSON")
	f.BoolVarP(&verbose, "verbose", "v", false, "also log renewals, attempts that fail, and handshakes")
	return cmd
}

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage.Errorf("unexpected argument %q", args[0])
	}
	return nil
}
