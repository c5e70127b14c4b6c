package controllermanager

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	clientinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	"k8s.io/controller-manager/pkg/clientbuilder"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	garbagecollectorconfig "k8s.io/kubernetes/pkg/controller/garbagecollector/config"
)

// controllerContext returns a context whose clients use an API server that serves the given resources, and no objects.
func controllerContext(t *testing.T, served []*metav1.APIResourceList) app.ControllerContext {
	t.Helper()
	server := httptest.NewServer(discoveryOf(served))
	t.Cleanup(server.Close)
	own := &rest.Config{Host: server.URL, QPS: -1}
	client, err := kubernetes.NewForConfig(own)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := metadata.NewForConfig(own)
	if err != nil {
		t.Fatal(err)
	}
	config, err := options.NewDefaultComponentConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.Generic.Controllers = []string{"*"}
	for r := range garbagecollector.DefaultIgnoredResources() { // the default of the options
		config.GarbageCollectorController.GCIgnoredResources = append(config.GarbageCollectorController.GCIgnoredResources,
			garbagecollectorconfig.GroupResource{Group: r.Group, Resource: r.Resource})
	}
	typed := clientinformers.NewSharedInformerFactory(client, 0)
	return app.ControllerContext{
		ClientBuilder:                   clientbuilder.SimpleControllerClientBuilder{ClientConfig: own},
		InformerFactory:                 typed,
		ObjectOrMetadataInformerFactory: informerfactory.NewInformerFactory(typed, metadatainformer.NewSharedInformerFactory(objects, 0)),
		ComponentConfig:                 config,
		RESTMapper:                      restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(client.Discovery())),
		InformersStarted:                make(chan struct{}),
		ResyncPeriod:                    func() time.Duration { return 0 },
		ControllerManagerMetrics:        controllersmetrics.NewControllerManagerMetrics(componentName),
	}
}

// discoveryOf answers the requests of discovery, and all others with 404.
func discoveryOf(served []*metav1.APIResourceList) http.Handler {
	mux := http.NewServeMux()
	answer := func(path string, object any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(object)
		})
	}
	groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, list := range served {
		list.TypeMeta = metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}
		if list.GroupVersion == "v1" {
			answer("/api/v1", list)
			continue
		}
		answer("/apis/"+list.GroupVersion, list)
		group, version, _ := strings.Cut(list.GroupVersion, "/")
		own := metav1.GroupVersionForDiscovery{GroupVersion: list.GroupVersion, Version: version}
		groups.Groups = append(groups.Groups, metav1.APIGroup{
			Name: group, Versions: []metav1.GroupVersionForDiscovery{own}, PreferredVersion: own,
		})
	}
	answer("/api", metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions", APIVersion: "v1"}, Versions: []string{"v1"}})
	answer("/apis", groups)
	return mux
}

// informerTypes returns the types of the objects of all informers of a factory.
func informerTypes(factory clientinformers.SharedInformerFactory) (types []string) {
	stop := make(chan struct{})
	close(stop)
	factory.Start(stop)
	for objects := range factory.WaitForCacheSync(stop) {
		types = append(types, objects.String())
	}
	slices.Sort(types)
	return types
}

// gated are the types of informers that a constructor requests only with a feature gate that is off by default.
var gated = []string{"*v1beta1.Workload", "*v1beta1.PodGroup", "*v1.DeviceClass", "*v1.ResourceClaim", "*v1.DeviceTaintRule"}

// anyResource is served because the constructor of the namespace controller ends the process if nothing is.
var anyResource = []*metav1.APIResourceList{resourceList("v1", resource("pods", "Pod", true, "delete", "list", "watch"))}

// TestInformersOfControllers compares the table with the informers that upstream's constructors request.
func TestInformersOfControllers(t *testing.T) {
	built := 0
	for name, descriptor := range app.NewControllerDescriptors() {
		dynamic := name == names.GarbageCollectorController || name == names.KubeAPIServerClusterTrustBundlePublisherController
		// This constructor is replaced, because it needs a client that is private to upstream's package.
		if name == names.ServiceAccountTokenController || dynamic {
			continue
		}
		if len(informersOf[name]) == 0 {
			t.Errorf("the table lacks the controller %s", name)
		}
		c := controllerContext(t, anyResource)
		controller, err := descriptor.GetControllerConstructor()(t.Context(), c, name)
		if err != nil {
			t.Logf("%s is not compared: %v", name, err)
			continue
		}
		if controller == nil {
			t.Logf("%s is not compared: it is disabled", name)
			continue
		}
		built++
		want := informerTypes(c.InformerFactory)
		table := controllerContext(t, anyResource)
		for _, resource := range informersOf[name] {
			if _, err := table.InformerFactory.ForResource(resource); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			generic, _ := table.InformerFactory.ForResource(resource)
			generic.Informer()
		}
		got := informerTypes(table.InformerFactory)
		for _, missing := range difference(want, got) {
			t.Errorf("%s: the table lacks %s", name, missing)
		}
		for _, extra := range difference(difference(got, want), gated) {
			t.Errorf("%s: the table has %s, which the constructor does not request", name, extra)
		}
	}
	if built < 38 {
		t.Errorf("only %d controllers were compared", built)
	}
}

func difference(list, other []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(other, s) })
}

func resourceList(version string, resources ...metav1.APIResource) *metav1.APIResourceList {
	return &metav1.APIResourceList{GroupVersion: version, APIResources: resources}
}

func resource(name, kind string, namespaced bool, verbs ...string) metav1.APIResource {
	return metav1.APIResource{Name: name, Kind: kind, Namespaced: namespaced, Verbs: verbs}
}

// TestNeededInformers checks which informers a standby runs.
func TestNeededInformers(t *testing.T) {
	all := []string{"create", "delete", "list", "watch"}
	served := []*metav1.APIResourceList{
		resourceList("v1", resource("pods", "Pod", true, all...), resource("nodes", "Node", false, all...), resource("events", "Event", true, all...)),
		resourceList("example.com/v1", resource("widgets", "Widget", true, all...), resource("reviews", "Review", true, "create")),
	}
	for _, test := range []struct {
		controllers []string
		want        []string
	}{
		{[]string{"pod-garbage-collector-controller"}, []string{"nodes", "pods"}},
		{[]string{"deployment-controller"}, []string{"pods"}}, // Deployments are not served
		{[]string{"garbage-collector-controller"}, []string{"nodes", "pods", "widgets"}},
		{[]string{"resourcequota-controller"}, []string{"pods", "widgets"}},
		{[]string{"-*"}, nil},
	} {
		c := controllerContext(t, served)
		c.ComponentConfig.Generic.Controllers = test.controllers
		discovery, err := discovery.NewDiscoveryClientForConfig(mustConfig(t, c))
		if err != nil {
			t.Fatal(err)
		}
		needed, err := newInformers(c, discovery).needed(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		got := slices.Sorted(resourceNames(needed))
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%v need informers of %v, want %v", test.controllers, got, test.want)
		}
	}
}

func mustConfig(t *testing.T, c app.ControllerContext) *rest.Config {
	t.Helper()
	config, err := c.ClientBuilder.Config("test")
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func resourceNames(r resources) func(func(string) bool) {
	return func(yield func(string) bool) {
		for resource := range maps.Keys(map[schema.GroupVersionResource]struct{}(r)) {
			if !yield(resource.Resource) {
				return
			}
		}
	}
}
