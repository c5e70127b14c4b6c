package bulk

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// EnsureNamespace creates a namespace if it does not exist. It waits until the namespace has a default
// service account, because pods cannot be created before.
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
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, serviceAccountTimeout, true, func(ctx context.Context) (bool, error) {
		_, err := core.ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("namespace %s has no default service account after %s; check with `k1m status` that kube-controller-manager is ready", name, serviceAccountTimeout)
	}
	return nil
}
