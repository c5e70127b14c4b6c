package cli

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func TestK1mFlagsAreSeparatedFromKubectlsArguments(t *testing.T) {
	for _, c := range []struct{ line, name, rest string }{
		{"get nodes -o yaml", "k1m", "get nodes -o yaml"},
		{"-n kube-system get pods", "k1m", "-n kube-system get pods"},
		{"--name x -- get nodes", "x", "get nodes"},
		{"--name=x get --name y", "x", "get --name y"},
		{"-- --help", "k1m", "--help"},
		{"get -- --name y", "k1m", "get -- --name y"},
		{"--", "k1m", ""},
	} {
		name := "k1m"
		rest, help, err := parseK1mFlags(strings.Fields(c.line), &name)
		if err != nil || help || name != c.name || !slices.Equal(rest, strings.Fields(c.rest)) {
			t.Errorf("parseK1mFlags(%q) = rest %q, help %v, error %v, name %q, want rest %q and name %q", c.line, rest, help, err, name, c.rest, c.name)
		}
	}
	name := ""
	if _, help, err := parseK1mFlags([]string{"--name", "x", "--help"}, &name); !help || err != nil {
		t.Errorf("parseK1mFlags() with --help = help %v, error %v, want true, nil", help, err)
	}
	if _, _, err := parseK1mFlags([]string{"--name"}, &name); !errors.Is(err, usage.Err) {
		t.Errorf("parseK1mFlags() with --name without a value = %v, want a usage error", err)
	}
}
