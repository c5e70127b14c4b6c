package status

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/cluster/storemember"
)

const (
	listPageSize   = 5000
	registryPrefix = "/registry/"
	storeTimeout   = 3 * time.Second
)

// Nodes counts the nodes of a cluster.
type Nodes struct {
	Total    int `json:"total"`
	Ready    int `json:"ready"`
	NotReady int `json:"notReady"`
}

// Pods counts the pods of a cluster.
type Pods struct {
	Total   int            `json:"total"`
	ByPhase map[string]int `json:"byPhase"`
}

// Objects describes the content of the stores: the number of keys under /registry/ in all stores, and the
// current revision of the main store.
type Objects struct {
	Count    int64 `json:"count"`
	Revision int64 `json:"revision"`
	// OwnStores are the stores of single resources.
	OwnStores []OwnStore `json:"ownStores,omitempty"`
}

// OwnStore describes the content of the own store of a resource.
type OwnStore struct {
	Resource string `json:"resource"`
	Count    int64  `json:"count"`
	Revision int64  `json:"revision"`
}

// count counts nodes, pods and objects, and reads the gateways, all concurrently. It adds errors to
// Problems.
func (s *Status) count(ctx context.Context, dir clusterdir.Dir, config clusterdir.Config) {
	var group sync.WaitGroup
	problems := make([]error, 4)
	var gatewayProblems []error
	client, err := newClient(dir)
	if err != nil {
		s.Problems = append(s.Problems, err.Error())
		return
	}
	group.Go(func() { s.Nodes, problems[0] = countNodes(ctx, client) })
	group.Go(func() { s.Pods, problems[1] = countPods(ctx, client) })
	group.Go(func() { s.Objects, problems[2] = countObjects(ctx, dir, config) })
	if config.Settings.HasStoreReplicas() {
		group.Go(func() { s.StoreLeader, problems[3] = storemember.Leader(ctx, dir, config) })
	}
	group.Go(func() { s.Gateways, gatewayProblems = readGateways(ctx, config) })
	group.Wait()
	for _, problem := range append(problems, gatewayProblems...) {
		if problem != nil {
			s.Problems = append(s.Problems, problem.Error())
		}
	}
}

func newClient(dir clusterdir.Dir) (kubernetes.Interface, error) {
	config, err := kube.Config(dir.Kubeconfig(pki.SuperAdmin.File))
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

func countNodes(ctx context.Context, client kubernetes.Interface) (*Nodes, error) {
	nodes := &Nodes{}
	err := forEachPage(func(options metav1.ListOptions) (string, error) {
		page, err := client.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return "", fmt.Errorf("counting nodes: %w", err)
		}
		for i := range page.Items {
			nodes.Total++
			if bulk.NodeReady(&page.Items[i]) {
				nodes.Ready++
			}
		}
		return page.Continue, nil
	})
	if err != nil {
		return nil, err
	}
	nodes.NotReady = nodes.Total - nodes.Ready
	return nodes, nil
}

func countPods(ctx context.Context, client kubernetes.Interface) (*Pods, error) {
	pods := &Pods{ByPhase: map[string]int{}}
	err := forEachPage(func(options metav1.ListOptions) (string, error) {
		page, err := client.CoreV1().Pods(corev1.NamespaceAll).List(ctx, options)
		if err != nil {
			return "", fmt.Errorf("counting pods: %w", err)
		}
		pods.Total += len(page.Items)
		for i := range page.Items {
			pods.ByPhase[string(page.Items[i].Status.Phase)]++
		}
		return page.Continue, nil
	})
	if err != nil {
		return nil, err
	}
	return pods, nil
}

// forEachPage calls list for each page, so that not all objects are in memory at the same time.
func forEachPage(list func(metav1.ListOptions) (next string, err error)) error {
	options := metav1.ListOptions{Limit: listPageSize}
	for {
		next, err := list(options)
		if err != nil || next == "" {
			return err
		}
		options.Continue = next
	}
}

func countObjects(ctx context.Context, dir clusterdir.Dir, config clusterdir.Config) (*Objects, error) {
	count, revision, err := countKeys(ctx, component.NewStoreClient(config, dir, clusterdir.MainStore))
	if err != nil {
		return nil, err
	}
	objects := &Objects{Count: count, Revision: revision}
	for _, resource := range config.Settings.OwnStores() {
		own := OwnStore{Resource: resource}
		own.Count, own.Revision, err = countKeys(ctx, component.NewStoreClient(config, dir, clusterdir.OwnStoreName(resource)))
		if err != nil {
			return nil, err
		}
		objects.Count += own.Count
		objects.OwnStores = append(objects.OwnStores, own)
	}
	return objects, nil
}

// countKeys returns the number of keys of API servers in a store, and its revision.
func countKeys(ctx context.Context, store component.StoreClient) (count, revision int64, err error) {
	client, err := store.Dial(ctx, storeTimeout)
	if err != nil {
		return 0, 0, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	response, err := client.Get(ctx, registryPrefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, 0, fmt.Errorf("counting objects in the store: %w", err)
	}
	return response.Count, response.Header.Revision, nil
}
