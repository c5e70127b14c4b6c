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
	// Maximum time for releasing leases. After it, waiting until they expire takes no longer.
	leaseReleaseTimeout = 20 * time.Second
)

// releaseLease removes the holder only. It keeps the renew time, because the node has not
// missed a heartbeat.
var releaseLease = []byte(`{"spec":{"holderIdentity":null}}`)

// ReleaseNodeLeases removes the holder of the node leases that a kwok process held when it
// died. Each kwok process has its own identity, so that its successor would otherwise wait
// until the leases expire: for 40 seconds no pod would start, and the nodes would almost
// become NotReady. It gives up after 20 seconds.
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
			if lease := &page.Items[i]; heldBySimulator(lease, time.Now()) {
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

// heldBySimulator reports whether kwok holds a lease that has not expired. A kubelet, in
// contrast to kwok, uses the node's name as its identity.
func heldBySimulator(lease *coordinationv1.Lease, now time.Time) bool {
	spec := lease.Spec
	if spec.HolderIdentity == nil || *spec.HolderIdentity == lease.Name || spec.RenewTime == nil || spec.LeaseDurationSeconds == nil {
		return false
	}
	return spec.RenewTime.Add(time.Duration(*spec.LeaseDurationSeconds) * time.Second).After(now)
}
