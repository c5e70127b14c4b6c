package profile

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// applier sets flags of settings, unless the user has set them, and records what it set.
type applier struct {
	settings        *clusterdir.Settings
	flags, defaults *pflag.FlagSet
	given           *pflag.FlagSet
}

func newApplier(s *clusterdir.Settings, given *pflag.FlagSet) *applier {
	return &applier{settings: s, flags: flagsOf(s), defaults: defaultFlags(), given: given}
}

// set sets a flag with a single value.
func (a *applier) set(name, value, reason string) {
	flag := a.flags.Lookup(name)
	current := flag.Value.String()
	if a.isUsers(name, current) {
		if !slices.Contains(a.settings.Kept, name) {
			a.settings.Kept = append(slices.Clone(a.settings.Kept), name)
		}
		return
	}
	// The values of this package are valid; a test applies all of them.
	if flag.Value.Set(value) == nil {
		a.record(name, value, reason)
	}
}

// isUsers reports whether the user has set a flag: in this call, in an earlier one, or to another value than the
// default.
func (a *applier) isUsers(name, current string) bool {
	isDefault := current == "" || current == a.defaults.Lookup(name).Value.String()
	return a.given.Changed(name) || slices.Contains(a.settings.Kept, name) || !isDefault
}

// add adds an entry KEY=VALUE to a repeatable flag, unless the user has an entry with this key.
func (a *applier) add(name, key, value, reason string) {
	list := a.flags.Lookup(name).Value.(pflag.SliceValue)
	entries := list.GetSlice()
	if _, found := entryOf(entries, key); found {
		return
	}
	entry := key + "=" + value
	if list.Replace(append(slices.Clone(entries), entry)) == nil {
		a.record(name, entry, reason)
	}
}

func (a *applier) record(name, value, reason string) {
	applied := &a.settings.Applied
	applied.Changes = append(applied.Changes, clusterdir.ProfileChange{Flag: name, Value: value, Reason: reason})
}

// entryOf returns the value of the last entry KEY=VALUE with this key.
func entryOf(entries []string, key string) (value string, found bool) {
	for _, entry := range entries {
		name, text, _ := strings.Cut(strings.TrimLeft(entry, "-"), "=")
		if name == key {
			value, found = text, true
		}
	}
	return value, found
}
