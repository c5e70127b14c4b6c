package lifecycle

import (
	"slices"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/profile"
	"github.com/k8s-1m/k8s-1m/internal/util/machine"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// reservedFiles are open files of a process for everything but connections of nodes.
const reservedFiles = 5000

// thisMachine returns what a profile needs to know about this machine. It raises the limit on open files, as far as
// allowed, for nodes with connections of their own: the components inherit the limit.
func thisMachine(s clusterdir.Settings) profile.Machine {
	m := profile.Machine{Memory: machine.This().MemoryBytes}
	if connections := s.Connections(); connections > 0 {
		// Without the limit, the profile adds no gateways.
		m.OpenFiles, _ = process.RaiseOpenFiles(uint64(clusterdir.FilesPerConnection*connections + reservedFiles))
	}
	return m
}

// useProfile announces the profile of settings, and returns options that follow it: a longer timeout, and a seeded
// store for a new cluster. Flags that the user has set win. Without a profile, it returns the options unchanged.
func useProfile(o UpOptions, s clusterdir.Settings, isNew bool) UpOptions {
	p, found := profile.Named(s.Applied.Name)
	if !found {
		return o
	}
	applied := s.Applied
	applied.Changes = slices.Clone(applied.Changes)
	if !o.Flags.Changed("timeout") && o.Timeout < p.Timeout {
		o.Timeout = p.Timeout
		applied.Changes = append(applied.Changes, clusterdir.ProfileChange{
			Flag: "timeout", Value: p.Timeout.String(), Reason: "the control plane reads and lists all nodes at its start",
		})
	}
	if !o.SeedStore && !o.Flags.Changed("seed-store") && isNew && seedsByProfile(s) {
		o.SeedStore = true
		applied.Changes = append(applied.Changes, clusterdir.ProfileChange{
			Flag: "seed-store", Value: "true", Reason: "a node that is created through the API takes 5 ms or more until it is Ready",
		})
	}
	if o.AnnounceProfile != nil {
		o.AnnounceProfile(applied)
	}
	return o
}

// seedsByProfile reports whether the store of a new cluster is certainly empty and keeps the nodes.
func seedsByProfile(s clusterdir.Settings) bool {
	return s.StoreAddress == "" && s.DataDir == "" && validateSeed(s) == nil
}
