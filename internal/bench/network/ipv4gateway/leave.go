package ipv4gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// Leave returns how long it takes until a node that leaves is gone: it is no peer of the gateway, and it has
// neither the tunnel nor the routes. Half of the nodes are deleted from the cluster, the others are told to
// leave.
func Leave(ctx context.Context, o Options, times int) (gone []time.Duration, err error) {
	err = withLab(o, func(l *lab) error {
		if err := l.writeNodes(); err != nil {
			return err
		}
		if _, err := l.startGateway(ctx); err != nil {
			return err
		}
		for i := range times {
			elapsed, err := l.leaveOnce(ctx, fmt.Sprintf("node-%d", i), i%2 == 0)
			if err != nil {
				return err
			}
			gone = append(gone, elapsed)
		}
		return nil
	})
	return gone, err
}

func (l *lab) leaveOnce(ctx context.Context, name string, deleted bool) (time.Duration, error) {
	if err := l.writeNodes(name, nodeAddress+"/128"); err != nil {
		return 0, err
	}
	cmd, err := l.join(ctx, name)
	if err != nil {
		return 0, err
	}
	connected := func() error {
		if c, err := l.node.Dial("udp", "["+prefix+serverAddress+"]:7", l.options.Timeout); err == nil {
			c.Close()
		}
		return l.peer(name, true)
	}
	if err := l.wait(ctx, "the node is connected", connected); err != nil {
		return 0, err
	}
	begin := time.Now()
	if deleted {
		if err := l.writeNodes(); err != nil {
			return 0, err
		}
		if err := l.wait(ctx, "the deleted node is gone", func() error { return l.peer(name, false) }); err != nil {
			return 0, err
		}
		elapsed := time.Since(begin)
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return 0, err
		}
		return elapsed, l.wait(ctx, "the tunnel of the deleted node is gone", func() error { return l.routed(ctx) })
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	err = l.wait(ctx, "the node that left is gone", func() error { return errors.Join(l.peer(name, false), l.routed(ctx)) })
	return time.Since(begin), err
}

// peer is an error unless a node is connected, or is not.
func (l *lab) peer(name string, want bool) error {
	nodes, err := l.nodes()
	if err == nil && nodes[name] != want {
		err = fmt.Errorf("node %s is connected: %v", name, nodes[name])
	}
	return err
}

// routed is an error if the node has routes into a tunnel.
func (l *lab) routed(ctx context.Context) error {
	routes, err := l.node.Run(ctx, "ip", "-6", "route", "show")
	if err == nil && strings.Contains(routes, "64:ff9b::") {
		err = errors.New("the node has a route into the tunnel")
	}
	return err
}
