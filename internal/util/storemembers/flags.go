package storemembers

import (
	"strconv"
	"strings"
	"time"
)

// args returns the command line of a member.
func (m *Member) args() []string {
	o := m.cluster.options
	args := []string{
		"--name", m.Name,
		"--listen-client-urls", m.ClientURL, "--advertise-client-urls", m.ClientURL,
		"--listen-peer-urls", m.PeerURL, "--initial-advertise-peer-urls", m.PeerURL,
		"--initial-cluster", m.cluster.initialCluster(), "--initial-cluster-token", "storemembers",
		"--initial-cluster-state", m.initialState(),
		"--heartbeat-interval", millis(o.Heartbeat, DefaultHeartbeat), "--election-timeout", millis(o.Election, DefaultElection),
		"--log-level", "warn",
	}
	if !m.cluster.Diskless() {
		args = append(args, "--data-dir", m.dataDir())
	}
	if m.cluster.Program() == MemEtcd {
		args = append(args, "--replication-log", o.ReplicationLog)
	}
	if tls := o.PeerTLS; tls.CA != "" {
		args = append(args, "--peer-trusted-ca-file", tls.CA, "--peer-cert-file", tls.Cert, "--peer-key-file", tls.Key, "--peer-client-cert-auth")
	}
	return append(args, o.Args...)
}

func (c *Cluster) initialCluster() string {
	var members []string
	for _, m := range c.Members {
		members = append(members, m.Name+"="+m.PeerURL)
	}
	return strings.Join(members, ",")
}

func (m *Member) initialState() string {
	if m.joins {
		return "existing"
	}
	return "new"
}

// millis returns a duration in milliseconds; fallback if it is 0.
func millis(duration, fallback time.Duration) string {
	if duration == 0 {
		duration = fallback
	}
	return strconv.FormatInt(duration.Milliseconds(), 10)
}
