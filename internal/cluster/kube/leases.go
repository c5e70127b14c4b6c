package kube

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
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

// ReleaseNodeLeases removes the holder of the node Leases that an exited kwok process holds. Each kwok
// process has its own identity. Without the release, the next process would wait until the Leases expire:
// for 40 seconds no pod would start, and the nodes would be close to becoming NotReady.
// ReleaseNodeLeases gives up after 20 seconds.
func ReleaseNodeLeases(ctx context.Context, config *rest.Config) error {
	ctx, cancel := context.WithTimeout(ctx, leaseReleaseTimeout)
	defer cancel()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connecting to the API server: %w", err)
	}
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	options := metav1.ListOptions{Limit: leasePage}
	for {
		page, err := leases.List(ctx, options)
		if err != nil {
			return fmt.Errorf("listing node leases: %w", err)
		}
		errs := make([]error, len(page.Items))
		workqueue.ParallelizeUntil(ctx, leaseConcurrency, len(page.Items), func(i int) {
			if lease := &page.Items[i]; heldByKwok(lease, time.Now()) {
				_, errs[i] = leases.Patch(ctx, lease.Name, types.MergePatchType, releaseLease, metav1.PatchOptions{})
			}
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

// heldByKwok reports whether kwok holds a Lease that has not expired. A kubelet uses the name of its node
// as its identity; kwok does not.
func heldByKwok(lease *coordinationv1.Lease, now time.Time) bool {
	spec := lease.Spec
	if spec.HolderIdentity == nil || *spec.HolderIdentity == lease.Name || spec.RenewTime == nil || spec.LeaseDurationSeconds == nil {
		return false
	}
	return spec.RenewTime.Add(time.Duration(*spec.LeaseDurationSeconds) * time.Second).After(now)
}
