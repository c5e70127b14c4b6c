package bulk

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const (
	requestTimeout = time.Minute
	dialTimeout    = 10 * time.Second
	// A namespace's service account is made by a controller, soon after it.
	serviceAccountWait = 30 * time.Second
	listPage           = 10_000

	maxConcurrency = 4096
	maxConnections = 256
	maxCount       = 10_000_000
)

// Options of one bulk operation.
type Options struct {
	Range       Range
	Concurrency int
	Connections int
	Progress    func(done int)
}

// DefaultOptions saturate an API server that has a few cores.
func DefaultOptions(prefix string) Options {
	return Options{Range: Range{Prefix: prefix}, Concurrency: 64, Connections: 8}
}

// AddFlags binds the options to flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&o.Range.Count, "count", o.Range.Count, "how many (required)")
	fs.IntVar(&o.Range.First, "first", o.Range.First, "number of the first; names are the prefix and a number")
	fs.StringVar(&o.Range.Prefix, "prefix", o.Range.Prefix, "beginning of the names")
	fs.IntVar(&o.Concurrency, "concurrency", o.Concurrency, "requests in flight at most")
	fs.IntVar(&o.Connections, "connections", o.Connections, "connections that share the requests, spread over the API servers")
}

// Validate reports the first option that cannot be.
func (o *Options) Validate() error {
	switch {
	case o.Range.Count == 0:
		return usage.Errorf("--count is required: say how many, 1 to %d", maxCount)
	case o.Range.Count < 1 || o.Range.Count > maxCount:
		return usage.Errorf("--count %d: choose 1 to %d", o.Range.Count, maxCount)
	case o.Range.First < 0:
		return usage.Errorf("--first %d: numbers begin at 0", o.Range.First)
	case o.Concurrency < 1 || o.Concurrency > maxConcurrency:
		return usage.Errorf("--concurrency %d: choose 1 to %d", o.Concurrency, maxConcurrency)
	case o.Connections < 1 || o.Connections > maxConnections:
		return usage.Errorf("--connections %d: choose 1 to %d", o.Connections, maxConnections)
	}
	if problems := validation.IsDNS1123Subdomain(o.Range.Name(0)); len(problems) > 0 {
		return usage.Errorf("--prefix %q: names may have a-z, 0-9, '-' and '.' only, and begin with a letter or digit", o.Range.Prefix)
	}
	return nil
}

// kind is a resource that can be handled in bulk.
type kind struct{ resource string }

var (
	nodeKind = kind{"nodes"}
	podKind  = kind{"pods"}
)

// Clients are connections of their own to the API servers, in turn.
type Clients struct {
	connections []kubernetes.Interface
	metadata    metadata.Interface
}

// NewClients opens lazily: nothing is dialled before the first request.
func NewClients(config *rest.Config, servers []string, connections int) (*Clients, error) {
	clients := &Clients{}
	for i := range max(connections, len(servers)) {
		own := rest.CopyConfig(config)
		own.Host = servers[i%len(servers)]
		// client-go shares one connection between equal configurations; a
		// dialer of its own makes each of them different.
		own.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
		client, err := kubernetes.NewForConfig(own)
		if err != nil {
			return nil, fmt.Errorf("connecting to %s: %w", own.Host, err)
		}
		clients.connections = append(clients.connections, client)
	}
	var err error
	if clients.metadata, err = metadata.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("connecting to the API server: %w", err)
	}
	return clients, nil
}

func (c *Clients) core(connection int) rest.Interface {
	return c.connections[connection%len(c.connections)].CoreV1().RESTClient()
}

// create and delete try once and leave retries to the caller, who counts them.
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

// existing finds which names of the range are taken, and the number after the
// highest that the prefix has.
func (c *Clients) existing(ctx context.Context, kind kind, namespace string, names Range) (taken sets.Set[string], next int, err error) {
	wanted, taken := names.Names(), sets.New[string]()
	err = c.eachPage(ctx, kind, namespace, func(page *metav1.PartialObjectMetadataList) {
		for _, item := range page.Items {
			if wanted.Has(item.Name) {
				taken.Insert(item.Name)
			}
			if number, ok := names.Number(item.Name); ok {
				next = max(next, number+1)
			}
		}
	})
	return taken, next, err
}

// eachPage lists metadata alone: far less than the objects.
func (c *Clients) eachPage(ctx context.Context, kind kind, namespace string, visit func(*metav1.PartialObjectMetadataList)) error {
	resource := c.metadata.Resource(schema.GroupVersionResource{Version: "v1", Resource: kind.resource}).Namespace(namespace)
	options := metav1.ListOptions{Limit: listPage}
	for {
		page, err := listPatiently(ctx, resource, options)
		if err != nil {
			return fmt.Errorf("listing the %s that exist: %w", kind.resource, err)
		}
		visit(page)
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}

func listPatiently(ctx context.Context, resource metadata.ResourceInterface, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	var page *metav1.PartialObjectMetadataList
	err := retry.OnError(newBackoff(), worthRetrying, func() (err error) {
		page, err = resource.List(ctx, options)
		return err
	})
	return page, err
}

// Connection is one of the clients, by a number that may be larger than there are.
func (c *Clients) Connection(i int) kubernetes.Interface { return c.connections[i%len(c.connections)] }

// EnsureNamespace makes a namespace ready to take pods.
func (c *Clients) EnsureNamespace(ctx context.Context, name string) error {
	core := c.connections[0].CoreV1()
	if _, err := core.Namespaces().Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		_, err = core.Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating namespace %s: %w", name, err)
		}
	} else if err != nil {
		return fmt.Errorf("reading namespace %s: %w", name, err)
	}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, serviceAccountWait, true, func(ctx context.Context) (bool, error) {
		_, err := core.ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("namespace %s got no service account within %s: is kube-controller-manager ready? See `k1m status`", name, serviceAccountWait)
	}
	return nil
}
