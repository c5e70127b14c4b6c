package clusterdir

import (
	"fmt"

	"github.com/spf13/pflag"
)

// Flags are those of `k1m up` that make such a cluster, as if they were given on the
// command line: where the settings are as they are by default, none is.
func (s Settings) Flags() (*pflag.FlagSet, error) {
	usual := DefaultSettings()
	given, wanted := pflag.NewFlagSet("up", pflag.ContinueOnError), pflag.NewFlagSet("wanted", pflag.ContinueOnError)
	usual.AddFlags(given)
	s.AddFlags(wanted)
	var failed error
	wanted.VisitAll(func(flag *pflag.Flag) {
		if err := give(given, flag); err != nil && failed == nil {
			failed = fmt.Errorf("--%s: %w", flag.Name, err)
		}
	})
	return given, failed
}

func give(given *pflag.FlagSet, flag *pflag.Flag) error {
	own := given.Lookup(flag.Name)
	if own.Value.String() == flag.Value.String() {
		return nil
	}
	list, ok := flag.Value.(pflag.SliceValue)
	if !ok {
		return given.Set(flag.Name, flag.Value.String())
	}
	for _, value := range list.GetSlice() {
		if err := given.Set(flag.Name, value); err != nil {
			return err
		}
	}
	return nil
}
