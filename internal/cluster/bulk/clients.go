package bulk

import (
	"context"
	"fmt"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
)

const (
	requestTimeout = time.Minute
	dialTimeout    = 10 * time.Second
	// serviceAccountTimeout limits the wait for the default service account of a new namespace, which
	// a controller normally creates within a second.
	serviceAccountTimeout = 30 * time.Second
	listPageSize          = 10_000

	maxConcurrency = 4096
	maxConnections = 256
	maxCount       = 10_000_000
)

// kind is a kind of object that this package creates and deletes.
type kind struct{ resource string }

var (
	nodeKind = kind{"nodes"}
	podKind  = kind{"pods"}
)

// Clients are clients with separate connections, which are spread evenly over the API servers.
type Clients struct {
	connections []kubernetes.Interface
	metadata    metadata.Interface
}

// NewClients returns clients with the given number of connections, but at least one for each server. A
// connection is opened by its first request.
func NewClients(config *rest.Config, servers []string, connections int) (*Clients, error) {
	clients := &Clients{}
	for i := range max(connections, len(servers)) {
		copied := rest.CopyConfig(config)
		copied.Host = servers[i%len(servers)]
		// client-go shares a connection between clients with equal configurations. A separate dialer
		// makes each configuration different.
		copied.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
		client, err := kubernetes.NewForConfig(copied)
		if err != nil {
			return nil, fmt.Errorf("connecting to %s: %w", copied.Host, err)
		}
		clients.connections = append(clients.connections, client)
	}
	var err error
	if clients.metadata, err = metadata.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("connecting to the API server: %w", err)
	}
	return clients, nil
}

// core returns the REST client of a connection for the core API group.
func (c *Clients) core(connection int) rest.Interface {
	return c.connections[connection%len(c.connections)].CoreV1().RESTClient()
}

// create makes a single attempt to create an object. The caller of create and delete repeats and counts
// attempts.
func (c *Clients) create(ctx context.Context, connection int, kind kind, namespace string, object runtime.Object) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return c.core(connection).Post().NamespaceIfScoped(namespace, namespace != "").
		Resource(kind.resource).Body(object).MaxRetries(0).Do(ctx).Error()
}

func (c *Clients) delete(ctx context.Context, connection int, kind kind, namespace, name string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return c.core(connection).Delete().NamespaceIfScoped(namespace, namespace != "").
		Resource(kind.resource).Name(name).Body(&metav1.DeleteOptions{}).MaxRetries(0).Do(ctx).Error()
}

// existing returns the names of the range that exist. next is the highest number of an existing object
// with the prefix of the range, plus 1.
func (c *Clients) existing(ctx context.Context, kind kind, namespace string, names Range) (taken sets.Set[string], next int, err error) {
	taken = sets.New[string]()
	err = c.forEachPage(ctx, kind, namespace, func(page *metav1.PartialObjectMetadataList) {
		for _, item := range page.Items {
			if _, ok := names.Index(item.Name); ok {
				taken.Insert(item.Name)
			}
			if number, ok := names.Number(item.Name); ok {
				next = max(next, number+1)
			}
		}
	})
	return taken, next, err
}

// forEachPage lists all objects of a kind. It requests only their metadata, which is much smaller than the
// objects.
func (c *Clients) forEachPage(ctx context.Context, kind kind, namespace string, visit func(*metav1.PartialObjectMetadataList)) error {
	resource := c.metadata.Resource(schema.GroupVersionResource{Version: "v1", Resource: kind.resource}).Namespace(namespace)
	options := metav1.ListOptions{Limit: listPageSize}
	for {
		page, err := listWithRetries(ctx, resource, options)
		if err != nil {
			return fmt.Errorf("listing existing %s: %w", kind.resource, err)
		}
		visit(page)
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}

func listWithRetries(ctx context.Context, resource metadata.ResourceInterface, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	var page *metav1.PartialObjectMetadataList
	err := retry.OnError(newBackoff(), isRetryable, func() (err error) {
		page, err = resource.List(ctx, options)
		return err
	})
	return page, err
}

// Connection returns the client with the index i modulo the number of connections.
func (c *Clients) Connection(i int) kubernetes.Interface { return c.connections[i%len(c.connections)] }
