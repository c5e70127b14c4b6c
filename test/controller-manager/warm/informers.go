// Package warm replaces client-go's package informers in Kubernetes' own tests of controllers: its factories start an
// informer when it is requested, and wait until it has synced. The constructor of each controller then gets informers
// that run already and have the objects of the cluster, as in a process that was a warm standby.
package warm

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/controllermanager/gate"
)

// syncLimit bounds the wait for an informer. Informers of resources that the API server does not serve never sync.
const syncLimit = 5 * time.Second

// Names of package informers that the tests use.
type (
	SharedInformerFactory = informers.SharedInformerFactory
	SharedInformerOption  = informers.SharedInformerOption
	GenericInformer       = informers.GenericInformer
)

// Options of package informers that the tests use.
var (
	WithNamespace          = informers.WithNamespace
	WithTransform          = informers.WithTransform
	WithTweakListOptions   = informers.WithTweakListOptions
	WithCustomResyncConfig = informers.WithCustomResyncConfig
)

// NewSharedInformerFactory returns a factory of warm informers.
func NewSharedInformerFactory(client kubernetes.Interface, resync time.Duration) informers.SharedInformerFactory {
	return NewSharedInformerFactoryWithOptions(client, resync)
}

// NewSharedInformerFactoryWithOptions returns a factory of warm informers. Handlers receive events after its Start.
func NewSharedInformerFactoryWithOptions(
	client kubernetes.Interface, resync time.Duration, options ...informers.SharedInformerOption,
) informers.SharedInformerFactory {
	fmt.Println("k1m: attached") // upstream.sh counts these lines
	inner := informers.NewSharedInformerFactoryWithOptions(client, resync, options...)
	return factory{gate.New(&starting{SharedInformerFactory: inner, warm: map[reflect.Type]bool{}})}
}

// factory opens its gate when a test starts the informers.
type factory struct{ *gate.Factory }

func (f factory) Start(stop <-chan struct{}) {
	f.Factory.Start(stop)
	f.Open()
}

func (f factory) StartWithContext(ctx context.Context) {
	f.Factory.StartWithContext(ctx)
	f.Open()
}

// starting starts each informer when it is requested for the first time.
type starting struct {
	informers.SharedInformerFactory
	mu   sync.Mutex
	warm map[reflect.Type]bool
}

func (s *starting) InformerFor(object runtime.Object, create internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	informer := s.SharedInformerFactory.InformerFor(object, create)
	s.mu.Lock()
	defer s.mu.Unlock()
	if kind := reflect.TypeOf(object); !s.warm[kind] {
		s.warm[kind] = true
		s.SharedInformerFactory.Start(context.Background().Done())
		limit, cancel := context.WithTimeout(context.Background(), syncLimit)
		defer cancel()
		cache.WaitForCacheSync(limit.Done(), informer.HasSynced)
	}
	return informer
}
