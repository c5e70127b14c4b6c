package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
)

const (
	leasePage        = 5000
	leaseConcurrency = 64
	// leaseReleaseTimeout limits the time for releasing Leases. After this time, it is faster to wait
	// until the remaining Leases expire.
	leaseReleaseTimeout = 20 * time.Second
)

// releaseLease is a patch that removes the holder. It keeps the renew time, so that the node does not
// become NotReady.
var releaseLease = []byte(`{"spec":{"holderIdentity":null}}`)

// ReleaseNodeLeases removes the holder of the node Leases that an exited kwok or node-sim process holds. Each
// kwok process has its own identity, and node-sim uses the name of the node, as a kubelet does. Without the
// release, kwok would wait until the Leases expire: for 40 seconds no pod would start, and the nodes would be
// close to becoming NotReady. ReleaseNodeLeases gives up after 20 seconds.
func ReleaseNodeLeases(ctx context.Context, config *rest.Config) error {
	ctx, cancel := context.WithTimeout(ctx, leaseReleaseTimeout)
	defer cancel()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connecting to the API server: %w", err)
	}
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connecting to the API server: %w", err)
	}
	return releaseNodeLeases(ctx, client, metadataClient)
}

func releaseNodeLeases(ctx context.Context, client kubernetes.Interface, metadataClient metadata.Interface) error {
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	simulated := sync.OnceValues(func() (sets.Set[string], error) { return simulatedNodes(ctx, metadataClient) })
	options := metav1.ListOptions{Limit: leasePage}
	for {
		page, err := leases.List(ctx, options)
		if err != nil {
			return fmt.Errorf("listing node leases: %w", err)
		}
		held, err := heldBySimulators(page.Items, time.Now(), simulated)
		if err != nil {
			return err
		}
		errs := make([]error, len(held))
		workqueue.ParallelizeUntil(ctx, leaseConcurrency, len(held), func(i int) {
			_, errs[i] = leases.Patch(ctx, held[i], types.MergePatchType, releaseLease, metav1.PatchOptions{})
		})
		for _, err := range errs {
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("releasing a node lease: %w", err)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return ctx.Err()
		}
	}
}

// heldBySimulators returns the names of the Leases that have not expired and that kwok or node-sim holds. A
// Lease whose holder has the name of the node is held by node-sim if the node is simulated, and by a kubelet
// otherwise. simulated returns the simulated nodes. It is called only if there is such a Lease, because the
// list is long.
func heldBySimulators(leases []coordinationv1.Lease, now time.Time, simulated func() (sets.Set[string], error)) ([]string, error) {
	var names []string
	for i := range leases {
		lease := &leases[i]
		if !held(lease, now) {
			continue
		}
		if *lease.Spec.HolderIdentity == lease.Name {
			nodes, err := simulated()
			if err != nil {
				return nil, err
			}
			if !nodes.Has(lease.Name) {
				continue
			}
		}
		names = append(names, lease.Name)
	}
	return names, nil
}

// held reports whether a Lease has a holder and has not expired.
func held(lease *coordinationv1.Lease, now time.Time) bool {
	spec := lease.Spec
	if spec.HolderIdentity == nil || spec.RenewTime == nil || spec.LeaseDurationSeconds == nil {
		return false
	}
	return spec.RenewTime.Add(time.Duration(*spec.LeaseDurationSeconds) * time.Second).After(now)
}
