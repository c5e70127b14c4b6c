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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/apiserverinternal"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/autoscaling"
	"k8s.io/client-go/informers/batch"
	"k8s.io/client-go/informers/certificates"
	"k8s.io/client-go/informers/coordination"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/events"
	"k8s.io/client-go/informers/extensions"
	"k8s.io/client-go/informers/flowcontrol"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/lifecycle"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/informers/node"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/rbac"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/informers/storagemigration"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// syncLimit bounds the wait for an informer. Informers of resources that the API server does not serve never sync.
const syncLimit = 5 * time.Second

// Names of package informers that the tests use.
type (
	SharedInformerFactory = informers.SharedInformerFactory
	SharedInformerOption  = informers.SharedInformerOption
	GenericInformer       = informers.GenericInformer
)

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

// NewSharedInformerFactoryWithOptions returns a factory of warm informers. An option that selects a namespace has no
// effect on informers of the groups below; the controllers' tests use none.
func NewSharedInformerFactoryWithOptions(client kubernetes.Interface, resync time.Duration, options ...informers.SharedInformerOption) informers.SharedInformerFactory {
	fmt.Println("k1m: attached") // upstream.sh counts these lines
	return &factory{SharedInformerFactory: informers.NewSharedInformerFactoryWithOptions(client, resync, options...), warm: map[reflect.Type]bool{}}
}

type factory struct {
	informers.SharedInformerFactory
	mu   sync.Mutex
	warm map[reflect.Type]bool
}

// InformerFor implements internalinterfaces.SharedInformerFactory.
func (f *factory) InformerFor(object runtime.Object, create internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	informer := f.SharedInformerFactory.InformerFor(object, create)
	f.mu.Lock()
	defer f.mu.Unlock()
	if kind := reflect.TypeOf(object); !f.warm[kind] {
		f.warm[kind] = true
		f.sync(informer)
	}
	return informer
}

// ForResource implements informers.SharedInformerFactory.
func (f *factory) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	generic, err := f.SharedInformerFactory.ForResource(resource)
	if err == nil {
		f.sync(generic.Informer())
	}
	return generic, err
}

// sync starts an informer and waits until it has synced.
func (f *factory) sync(informer cache.SharedIndexInformer) {
	f.SharedInformerFactory.Start(context.Background().Done())
	limit, cancel := context.WithTimeout(context.Background(), syncLimit)
	defer cancel()
	cache.WaitForCacheSync(limit.Done(), informer.HasSynced)
}

// The groups of client-go's factory, with the informers of this one.

func (f *factory) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, "", nil)
}

func (f *factory) Internal() apiserverinternal.Interface { return apiserverinternal.New(f, "", nil) }

func (f *factory) Apps() apps.Interface { return apps.New(f, "", nil) }

func (f *factory) Autoscaling() autoscaling.Interface { return autoscaling.New(f, "", nil) }

func (f *factory) Batch() batch.Interface { return batch.New(f, "", nil) }

func (f *factory) Certificates() certificates.Interface { return certificates.New(f, "", nil) }

func (f *factory) Coordination() coordination.Interface { return coordination.New(f, "", nil) }

func (f *factory) Core() core.Interface { return core.New(f, "", nil) }

func (f *factory) Discovery() discovery.Interface { return discovery.New(f, "", nil) }

func (f *factory) Events() events.Interface { return events.New(f, "", nil) }

func (f *factory) Extensions() extensions.Interface { return extensions.New(f, "", nil) }

func (f *factory) Flowcontrol() flowcontrol.Interface { return flowcontrol.New(f, "", nil) }

func (f *factory) Lifecycle() lifecycle.Interface { return lifecycle.New(f, "", nil) }

func (f *factory) Networking() networking.Interface { return networking.New(f, "", nil) }

func (f *factory) Node() node.Interface { return node.New(f, "", nil) }

func (f *factory) Policy() policy.Interface { return policy.New(f, "", nil) }

func (f *factory) Rbac() rbac.Interface { return rbac.New(f, "", nil) }

func (f *factory) Resource() resource.Interface { return resource.New(f, "", nil) }

func (f *factory) Scheduling() scheduling.Interface { return scheduling.New(f, "", nil) }

func (f *factory) Storage() storage.Interface { return storage.New(f, "", nil) }

func (f *factory) Storagemigration() storagemigration.Interface {
	return storagemigration.New(f, "", nil)
}
