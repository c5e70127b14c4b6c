package clusterdir

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// TestOwnStoresAreNamed checks that each way to write the flag leads to the same settings, components and ports.
func TestOwnStoresAreNamed(t *testing.T) {
	want := []string{"store", "store-events", "store-leases", "store-pods"}
	for _, args := range [][]string{
		{"--store-for", "pods,events,leases=own"},
		{"--store-for", "leases=own", "--store-for", "events,pods=own"},
		{"--store-for", "/pods,events.k8s.io/events,coordination.k8s.io/leases=own"},
	} {
		s := overlay(t, DefaultSettings(), args...)
		s.Complete()
		if err := s.Validate(); err != nil {
			t.Fatalf("Validate() with %q = %v", args, err)
		}
		if !slices.Equal(s.StoreFor, []string{"events,leases,pods=own"}) || !slices.Equal(s.StoreNames(), want) {
			t.Errorf("with %q the settings are %q and the stores %q, want %q", args, s.StoreFor, s.StoreNames(), want)
		}
		ports := s.PortNames()
		for _, name := range []string{"store", "store-metrics", "store-pods", "store-pods-metrics"} {
			if !slices.Contains(ports, name) {
				t.Errorf("with %q the ports are %q, want %s", args, ports, name)
			}
		}
		if s.StoreOf("pods") != "store-pods" || s.StoreOf("nodes") != "store" || ResourceOf("store-pods") != "pods" || ResourceOf("store") != "" {
			t.Errorf("StoreOf() = %s for pods and %s for nodes", s.StoreOf("pods"), s.StoreOf("nodes"))
		}
	}
	s := Settings{StoreAddress: "http://127.0.0.1:1"}
	if names := s.StoreNames(); len(names) > 0 {
		t.Errorf("the stores of a cluster with an external store are %q, want none", names)
	}
}

func TestInvalidOwnStoresAreUsageErrors(t *testing.T) {
	for _, c := range []struct{ flags, want string }{
		{"--store-for pods", `--store-for "pods": write it like pods,events,leases=own`},
		{"--store-for pods=etcd", "write it like"},
		{"--store-for pods=own,events=own", "write it like"},
		{"--store-for =own", `--store-for "": kube-apiserver stores no such resource`},
		{"--store-for pod=own", `--store-for "pod": kube-apiserver stores no such resource`},
		{"--store-for apps/pods=own", `"apps/pods": kube-apiserver stores no such resource`},
		{"--store-for pods,pods=own", "pods is named twice"},
		{"--store-for events=own --store-for events.k8s.io/events=own", "events is named twice"},
		{"--store-for pods=own --store-address http://127.0.0.1:1", "does not run the store of --store-address"},
		{"--store-for pods=own --trace", "etcd-proxy (--trace) records one store only"},
		{"--store-for pods=own --store-arg snapshot-dir=/s", "omit --store-arg snapshot-dir=/s"},
	} {
		s := overlay(t, DefaultSettings(), strings.Fields(c.flags)...)
		s.Complete()
		if err := s.Validate(); !errors.Is(err, usage.Err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Validate() with %s = %v, want a usage error with %q", c.flags, err, c.want)
		}
	}
}

// TestResourcesWithOwnStoresExist compares the list of resources with the types of the API.
func TestResourcesWithOwnStoresExist(t *testing.T) {
	known := map[schema.GroupResource]bool{}
	for kind := range scheme.Scheme.AllKnownTypes() {
		plural, _ := meta.UnsafeGuessKindToResource(kind)
		known[plural.GroupResource()] = true
	}
	seen := map[string]bool{}
	for group, names := range storedResources {
		for _, name := range names {
			if !known[schema.GroupResource{Group: group, Resource: name}] {
				t.Errorf("the API group %q has no resource %s", group, name)
			}
			if seen[name] {
				t.Errorf("%s is in two groups, want unique names", name)
			}
			seen[name] = true
			if got := GroupOf(name); got != group {
				t.Errorf("GroupOf(%s) = %q, want %q", name, got, group)
			}
		}
	}
}
