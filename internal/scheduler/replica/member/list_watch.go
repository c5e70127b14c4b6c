package member

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
)

// podWatch returns a function that returns, for a shard selector, a ListerWatcher of the pods that have
// not terminated. kube-scheduler watches the same pods.
func podWatch(client kubernetes.Interface) func(string) toolscache.ListerWatcher {
	fields := fmt.Sprintf("status.phase!=%v,status.phase!=%v", v1.PodSucceeded, v1.PodFailed)
	pods := client.CoreV1().Pods(metav1.NamespaceAll)
	return func(selector string) toolscache.ListerWatcher {
		return toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				options.FieldSelector, options.ShardSelector = fields, selector
				return pods.List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				options.FieldSelector, options.ShardSelector = fields, selector
				return pods.Watch(ctx, options)
			},
		}, client)
	}
}

// nodeWatch returns a function that returns, for a shard selector, a ListerWatcher of nodes.
func nodeWatch(client kubernetes.Interface) func(string) toolscache.ListerWatcher {
	nodes := client.CoreV1().Nodes()
	return func(selector string) toolscache.ListerWatcher {
		return toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				options.ShardSelector = selector
				return nodes.List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				options.ShardSelector = selector
				return nodes.Watch(ctx, options)
			},
		}, client)
	}
}
