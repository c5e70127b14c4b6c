package main

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
)

// Name is the name of the plugin in a KubeSchedulerConfiguration.
const Name = "Tenants"

// defaultLabel is the label that names the tenant, of nodes and of pods.
const defaultLabel = "example.com/tenant"

// Args are the arguments of the plugin in a KubeSchedulerConfiguration.
type Args struct {
	// Label is the key of the label that names the tenant.
	Label string `json:"label"`
}

// Tenants keeps pods of other tenants away from the nodes of a tenant. Nodes without a tenant are for all.
type Tenants struct{ label string }

var (
	_ fwk.FilterPlugin      = &Tenants{}
	_ fwk.EnqueueExtensions = &Tenants{}
)

// New returns the plugin.
func New(_ context.Context, configuration runtime.Object, _ fwk.Handle) (fwk.Plugin, error) {
	args := Args{Label: defaultLabel}
	if err := frameworkruntime.DecodeInto(configuration, &args); err != nil {
		return nil, fmt.Errorf("reading the arguments of plugin %s: %w", Name, err)
	}
	if args.Label == "" {
		return nil, fmt.Errorf("the arguments of plugin %s have no label; set label", Name)
	}
	return &Tenants{args.Label}, nil
}

// Name returns the name of the plugin.
func (*Tenants) Name() string { return Name }

// Filter rejects the nodes of other tenants. Evicting pods would not change that, so the status says that it is not
// resolvable.
func (t *Tenants) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	if owner := node.Node().Labels[t.label]; owner != "" && owner != pod.Labels[t.label] {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) belong to another tenant")
	}
	return nil
}

// EventsToRegister returns the events after which a rejected pod may fit. Without it, the queue retries the pod after every
// event.
func (t *Tenants) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}, QueueingHintFn: t.nodeMayFit},
		{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodLabel}},
	}, nil
}

// nodeMayFit retries a pod only if the changed node is not that of another tenant.
func (t *Tenants) nodeMayFit(_ klog.Logger, pod *v1.Pod, _, changed any) (fwk.QueueingHint, error) {
	node, ok := changed.(*v1.Node)
	if !ok {
		return fwk.Queue, fmt.Errorf("the event has a %T instead of a node", changed)
	}
	if owner := node.Labels[t.label]; owner != "" && owner != pod.Labels[t.label] {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}
