// Package storemembers runs the members of a replicated store, etcd or mem_etcd, as processes of this machine. Tests inject
// faults into members, and benchmarks measure them.
//
// A [Cluster] has the members. member.go starts, stops and signals the process of one member, flags.go has its
// command line, and health.go asks members who leads and whether they serve.
package storemembers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Programs that can be members.
const (
	Etcd    = "etcd"
	MemEtcd = "mem_etcd"
)

// LogMemory is the value of mem_etcd's flag --replication-log with which members keep nothing on a disk.
const LogMemory = "memory"

// Timings of the members. A leader is replaced when followers have not heard from it for the election timeout.
const (
	DefaultHeartbeat = 100 * time.Millisecond
	DefaultElection  = time.Second
)

// Options are the options of [Start].
type Options struct {
	// Program is the path of etcd or mem_etcd. Its base name decides which flags it gets.
	Program string
	// Dir is an existing directory for the data and the logs of the members.
	Dir     string
	Members int
	// Disks are existing directories for the data of the members, one for each; empty for Dir.
	Disks []string
	// ReplicationLog is --replication-log of mem_etcd; ignored for etcd, which has only one kind of log.
	ReplicationLog string
	// Heartbeat and Election are the timings of the members; 0 for the defaults.
	Heartbeat, Election time.Duration
	// Args are further flags of all members.
	Args []string
	// Prefix is the start of the command line of each member on the loopback interface, such as taskset -c 0.
	Prefix []string
	// Sites are the places of the members, one for each; empty for the loopback interface.
	Sites []Site
	// PeerTLS are the certificates for connections between members. Members outside the loopback interface need them.
	PeerTLS TLSFiles
}

// Site is where a member runs.
type Site struct {
	Host string // address on which the member listens, and to which others connect
	// Prefix is the start of the command line, such as ip netns exec NAME.
	Prefix []string
}

// TLSFiles are the paths of a CA certificate, a certificate and its key; all empty for no TLS.
type TLSFiles struct{ CA, Cert, Key string }

// Cluster is a set of members.
type Cluster struct {
	Members []*Member
	options Options
}

// Start starts all members of a new cluster and waits until each of them serves. If it fails, no member is left.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{options: o}
	for i := range o.Members {
		m, err := newMember(c, i)
		if err != nil {
			return nil, err
		}
		c.Members = append(c.Members, m)
	}
	for _, m := range c.Members {
		if err := m.Start(); err != nil {
			c.Close()
			return nil, err
		}
	}
	if err := c.AwaitHealthy(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close kills all members.
func (c *Cluster) Close() {
	for _, m := range c.Members {
		m.Kill()
	}
}

// Program returns the base name of the program of the members.
func (c *Cluster) Program() string { return filepath.Base(c.options.Program) }

// Tolerated returns the number of members that may fail at the same time.
func (c *Cluster) Tolerated() int { return (len(c.Members) - 1) / 2 }

// Diskless reports whether the members keep nothing on a disk.
func (c *Cluster) Diskless() bool {
	return c.Program() == MemEtcd && c.options.ReplicationLog == LogMemory
}

// Endpoints returns the URLs at which clients connect to the members.
func (c *Cluster) Endpoints() []string {
	var urls []string
	for _, m := range c.Members {
		urls = append(urls, m.ClientURL)
	}
	return urls
}

// Dial returns a client of etcd's client library for some endpoints. It is closed when ctx is done.
func Dial(ctx context.Context, endpoints ...string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: endpoints, Context: ctx, DialTimeout: dialTimeout, Logger: zap.NewNop(), MaxCallRecvMsgSize: 1 << 30})
}

// Replace starts a member whose process has ended with an empty directory, as an operator does with a member that lost its
// disk. etcd's member is removed from the cluster and added again before; mem_etcd's joins again by itself. It does not wait until the new member serves. After an error it may be
// called again: a cluster refuses changes while it is not sure that a majority is connected, for some seconds after a fault.
func (c *Cluster) Replace(ctx context.Context, m *Member) error {
	if m.Running() {
		return fmt.Errorf("%s runs; end its process before it is replaced", m.Name)
	}
	if c.Program() == MemEtcd {
		return errors.Join(os.RemoveAll(m.dataDir()), m.Start())
	}
	client, err := Dial(ctx, c.others(m)...)
	if err != nil {
		return err
	}
	defer client.Close()
	removeCtx, stop := context.WithTimeout(ctx, probeTimeout)
	defer stop()
	if err := Remove(removeCtx, client, m.PeerURL); err != nil {
		return fmt.Errorf("replacing %s: %w", m.Name, err)
	}
	if err := os.RemoveAll(m.dataDir()); err != nil {
		return err
	}
	changeCtx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	added, err := client.MemberAdd(changeCtx, []string{m.PeerURL})
	if err != nil {
		return fmt.Errorf("adding %s: %w", m.Name, err)
	}
	if err := c.awaitKnown(ctx, m, added.Member.ID); err != nil {
		return err
	}
	m.joins = true
	return m.Start()
}

// awaitKnown waits until all other members that run know the new member. It asks any of them for its ID when it starts, and one
// that lags behind would answer with that of the member that was removed.
func (c *Cluster) awaitKnown(ctx context.Context, m *Member, id uint64) error {
	for _, other := range c.Members {
		if other == m || !other.Running() || other.paused {
			continue
		}
		for !other.knows(ctx, id) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s does not know that %s was replaced: %w", other.Name, m.Name, context.Cause(ctx))
			case <-time.After(pollInterval):
			}
		}
	}
	return nil
}

// knows reports whether a member says that the cluster has a member with an ID.
func (m *Member) knows(ctx context.Context, id uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	client, err := Dial(ctx, m.ClientURL)
	if err != nil {
		return false
	}
	defer client.Close()
	known, err := Knows(ctx, client, id)
	return known && err == nil
}

// Knows reports whether the member to which a client is connected says that the cluster has a member with an ID.
func Knows(ctx context.Context, client *clientv3.Client, id uint64) (bool, error) {
	list, err := client.MemberList(ctx, clientv3.WithSerializable())
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.Members, func(listed *pb.Member) bool { return listed.ID == id }), nil
}

// Remove removes the member with a peer URL from the cluster. It is no error if the cluster has none.
func Remove(ctx context.Context, client *clientv3.Client, peerURL string) error {
	list, err := client.MemberList(ctx)
	if err != nil {
		return fmt.Errorf("listing the members: %w", err)
	}
	for _, listed := range list.Members {
		if !slices.Contains(listed.PeerURLs, peerURL) {
			continue
		}
		if _, err := client.MemberRemove(ctx, listed.ID); err != nil {
			return fmt.Errorf("removing the member: %w", err)
		}
	}
	return nil
}

// others returns the endpoints of all other members.
func (c *Cluster) others(m *Member) []string {
	var urls []string
	for _, other := range c.Members {
		if other != m {
			urls = append(urls, other.ClientURL)
		}
	}
	return urls
}

// site returns the address and the ports of the i-th member.
func (o Options) site(i int) (site Site, client, peer int, err error) {
	if len(o.Sites) > 0 {
		return o.Sites[i], firstSitePort, firstSitePort + 1, nil
	}
	if client, err = freePort(); err == nil {
		peer, err = freePort()
	}
	return Site{Host: loopback, Prefix: o.Prefix}, client, peer, err
}

const (
	loopback = "127.0.0.1"
	// firstSitePort is the port for clients of a member with an address of its own; the next one is for peers.
	firstSitePort = 2379
)

// triedPorts is the number of ports that freePort has tried.
var triedPorts atomic.Int32

// freePort returns a port of the loopback interface that has no listener, and that no other call returns. It is below the
// ephemeral ports, so that no outgoing connection takes it while a member restarts.
func freePort() (int, error) {
	const first, count = 10_000, 10_000 // k1m's clusters use ports from 20,000 on
	for range count {
		port := first + (os.Getpid()*89+int(triedPorts.Add(1)))%count
		listener, err := net.Listen("tcp", address(loopback, port))
		if err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("no port from %d to %d is free", first, first+count-1)
}

func address(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
