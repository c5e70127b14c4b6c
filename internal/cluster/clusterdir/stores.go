package clusterdir

import (
	"slices"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// MainStore is the component name of the store of all resources that have no own store.
const MainStore = "store"

// ownStore is the only value of an entry of Settings.StoreFor, RESOURCES=own.
const ownStore = "own"

// Resources whose keys k1m itself writes or reads in their store.
const (
	LeasesResource   = "leases"
	NodesResource    = "nodes"
	CSINodesResource = "csinodes"
)

// storedResources are the resources of kube-apiserver that can have an own store, by API group. The names are unique.
// Not included: events of the group events.k8s.io, which kube-apiserver stores as those of the core group, and
// resources that --etcd-servers-overrides does not apply to (CustomResourceDefinitions, APIServices).
var storedResources = map[string][]string{
	"": {
		"configmaps", "endpoints", "events", "limitranges", "namespaces", NodesResource, "persistentvolumeclaims", "persistentvolumes",
		"pods", "podtemplates", "replicationcontrollers", "resourcequotas", "secrets", "serviceaccounts", "services",
	},
	"admissionregistration.k8s.io": {
		"mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "mutatingwebhookconfigurations",
		"validatingadmissionpolicies", "validatingadmissionpolicybindings", "validatingwebhookconfigurations",
	},
	"apps":                         {"controllerrevisions", "daemonsets", "deployments", "replicasets", "statefulsets"},
	"autoscaling":                  {"horizontalpodautoscalers"},
	"batch":                        {"cronjobs", "jobs"},
	"certificates.k8s.io":          {"certificatesigningrequests", "clustertrustbundles", "podcertificaterequests"},
	"coordination.k8s.io":          {"leasecandidates", LeasesResource},
	"discovery.k8s.io":             {"endpointslices"},
	"flowcontrol.apiserver.k8s.io": {"flowschemas", "prioritylevelconfigurations"},
	"networking.k8s.io":            {"ingressclasses", "ingresses", "ipaddresses", "networkpolicies", "servicecidrs"},
	"node.k8s.io":                  {"runtimeclasses"},
	"policy":                       {"poddisruptionbudgets"},
	"rbac.authorization.k8s.io":    {"clusterrolebindings", "clusterroles", "rolebindings", "roles"},
	"resource.k8s.io":              {"deviceclasses", "devicetaintrules", "resourceclaims", "resourceclaimtemplates", "resourceslices"},
	"scheduling.k8s.io":            {"podgroups", "priorityclasses", "workloads"},
	"storage.k8s.io": {
		"csidrivers", CSINodesResource, "csistoragecapacities", "storageclasses", "volumeattachments", "volumeattributesclasses",
	},
}

// GroupOf returns the API group of a resource with an own store.
func GroupOf(resource string) string {
	for group, names := range storedResources {
		if slices.Contains(names, resource) {
			return group
		}
	}
	return ""
}

// OwnStores returns the resources that have an own store, sorted.
func (s *Settings) OwnStores() []string {
	// Invalid entries are reported by validateOwnStores.
	resources, _ := parseStoreFor(s.StoreFor)
	return resources
}

// StoreNames returns the names of all stores that k1m runs, MainStore first. [Settings.StoreMembers] returns the components
// of a store.
func (s *Settings) StoreNames() []string {
	if s.StoreAddress != "" {
		return nil
	}
	names := []string{MainStore}
	for _, resource := range s.OwnStores() {
		names = append(names, OwnStoreName(resource))
	}
	return names
}

// StoreOf returns the component name of the store that has the keys of a resource, such as pods.
func (s *Settings) StoreOf(resource string) string {
	if slices.Contains(s.OwnStores(), resource) {
		return OwnStoreName(resource)
	}
	return MainStore
}

// OwnStoreName returns the component name of the own store of a resource.
func OwnStoreName(resource string) string { return MainStore + "-" + resource }

// ResourceOf returns the resource of an own store with the given component name; empty for MainStore.
func ResourceOf(store string) string {
	return strings.TrimPrefix(strings.TrimPrefix(store, MainStore), "-")
}

// IsStore reports whether a component name is that of a store, or of a member of one.
func IsStore(component string) bool {
	return component == MainStore || strings.HasPrefix(component, MainStore+"-")
}

// StoreMetricsPort returns the name of the port on which a store serves /readyz and /metrics.
func StoreMetricsPort(store string) string { return store + "-metrics" }

// StorePeerPort returns the name of the port for peers of a member of a store. A mem_etcd with one member has none.
func StorePeerPort(store string) string { return store + "-peer" }

// parseStoreFor returns the resources in entries such as pods,events=own, sorted. The error names the first invalid
// entry.
func parseStoreFor(entries []string) (resources []string, err error) {
	for _, entry := range entries {
		names, value, _ := strings.Cut(entry, "=")
		if value != ownStore {
			return nil, usage.Errorf("--store-for %q: write it like pods,events,leases=own", entry)
		}
		for name := range strings.SplitSeq(names, ",") {
			resource := findResource(name)
			if resource == "" {
				return nil, usage.Errorf("--store-for %q: kube-apiserver stores no such resource; name resources such as pods, events or coordination.k8s.io/leases", name)
			}
			if slices.Contains(resources, resource) {
				return nil, usage.Errorf("--store-for: %s is named twice; name each resource once", resource)
			}
			resources = append(resources, resource)
		}
	}
	slices.Sort(resources)
	return resources, nil
}

// findResource returns the name of a resource without its group; empty if it is unknown. In text, the group is
// optional and written as in the flag --etcd-servers-overrides: leases, coordination.k8s.io/leases, /pods.
func findResource(text string) string {
	group, name, hasGroup := strings.Cut(text, "/")
	if !hasGroup {
		group, name = "", text
	}
	if name == "events" && group == "events.k8s.io" {
		return name
	}
	for known, names := range storedResources {
		if slices.Contains(names, name) && (!hasGroup || group == known) {
			return name
		}
	}
	return ""
}

// completeStoreFor gives equal settings the same text: one entry with all resources. It keeps invalid entries.
func (s *Settings) completeStoreFor() {
	if resources, err := parseStoreFor(s.StoreFor); err == nil && len(resources) > 0 {
		s.StoreFor = []string{strings.Join(resources, ",") + "=" + ownStore}
	}
}

func (s *Settings) validateOwnStores() error {
	if _, err := parseStoreFor(s.StoreFor); err != nil || len(s.StoreFor) == 0 {
		return err
	}
	switch i := slices.IndexFunc(s.StoreArgs, namesDirectory); {
	case s.StoreAddress != "":
		return usage.Errorf("--store-for: k1m does not run the store of --store-address, and so no others; omit one of them")
	case s.Trace:
		return usage.Errorf("--store-for: etcd-proxy (--trace) records one store only; omit one of them")
	case i >= 0:
		return usage.Errorf("--store-for: each store needs its own directory; omit --store-arg %s", s.StoreArgs[i])
	}
	return nil
}
