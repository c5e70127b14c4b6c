package bulk

import (
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Options are the options of one bulk operation.
type Options struct {
	Range       Range
	Concurrency int // maximum number of requests in flight
	Connections int
	Progress    func(done int) // called several times per second with the number of handled objects
}

// DefaultOptions returns options with which the requests saturate an API server with a few cores.
func DefaultOptions(prefix string) Options {
	return Options{Range: Range{Prefix: prefix}, Concurrency: 64, Connections: 8}
}

// AddFlags defines a flag for each option.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&o.Range.Count, "count", o.Range.Count, "number of objects (required)")
	fs.IntVar(&o.Range.First, "first", o.Range.First, "number of the first object; the name of an object is the prefix followed by its number")
	fs.StringVar(&o.Range.Prefix, "prefix", o.Range.Prefix, "prefix of the names of the objects")
	fs.IntVar(&o.Concurrency, "concurrency", o.Concurrency, "maximum number of requests in flight")
	fs.IntVar(&o.Connections, "connections", o.Connections, "number of connections, spread over the API servers")
}

// Validate returns a usage error for the first invalid option.
func (o *Options) Validate() error {
	switch {
	case o.Range.Count == 0:
		return usage.Errorf("--count is required; choose 1 to %d", maxCount)
	case o.Range.Count < 1 || o.Range.Count > maxCount:
		return usage.Errorf("--count %d: choose 1 to %d", o.Range.Count, maxCount)
	case o.Range.First < 0:
		return usage.Errorf("--first %d: choose 0 or more", o.Range.First)
	case o.Concurrency < 1 || o.Concurrency > maxConcurrency:
		return usage.Errorf("--concurrency %d: choose 1 to %d", o.Concurrency, maxConcurrency)
	case o.Connections < 1 || o.Connections > maxConnections:
		return usage.Errorf("--connections %d: choose 1 to %d", o.Connections, maxConnections)
	}
	if problems := validation.IsDNS1123Subdomain(o.Range.Name(0)); len(problems) > 0 {
		return usage.Errorf("--prefix %q: use a-z, 0-9, '-' and '.'; the first character must be a letter or digit", o.Range.Prefix)
	}
	return nil
}
