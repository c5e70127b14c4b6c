// Package through runs warm-controller-manager in place of kube-controller-manager in Kubernetes' own tests.
package through

import (
	"context"
	"fmt"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app/config"

	"github.com/k8s-1m/k8s-1m/internal/controllermanager"
)

// Run replaces app.Run. The line on standard output is what test/controller-manager/upstream.sh counts.
func Run(ctx context.Context, c *config.CompletedConfig) error {
	fmt.Println("k1m: attached")
	return controllermanager.Run(ctx, c)
}
