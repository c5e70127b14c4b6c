package schedtest

import (
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
)

// Patience is how long a test waits for an expected condition. It is long because the machine may be busy with other tests.
const Patience = 3 * time.Minute

// Eventually waits until check returns no error. The condition, for example "pod a is bound", is
// part of the failure message.
func (f *Fixture) Eventually(condition string, check func() error) {
	f.T.Helper()
	deadline := time.Now().Add(Patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			f.T.Fatalf("timed out after %v waiting until %s: %v", Patience, condition, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// AwaitBound waits until a pod of the default namespace is bound, and returns its node.
func (f *Fixture) AwaitBound(name string) (node string) {
	f.T.Helper()
	f.Eventually(fmt.Sprintf("pod %s is bound", name), func() error {
		pod := f.API.Pod("default/" + name)
		if pod == nil {
			return errors.New("the pod does not exist")
		}
		if pod.Spec.NodeName == "" {
			return fmt.Errorf("spec.nodeName is empty, conditions %+v", pod.Status.Conditions)
		}
		node = pod.Spec.NodeName
		return nil
	})
	return node
}

// AwaitBoundOnce waits until a pod is bound, and checks that it was bound once.
func (f *Fixture) AwaitBoundOnce(pod *v1.Pod) {
	f.T.Helper()
	f.AwaitBound(pod.Name)
	f.API.Mu.Lock()
	defer f.API.Mu.Unlock()
	if binds := f.API.Binds[pod.UID]; binds != 1 {
		f.T.Errorf("pod %s was bound %d times, want 1", pod.Name, binds)
	}
}

// AwaitUnschedulable waits until the scheduler has reported a pod of the default namespace as
// unschedulable.
func (f *Fixture) AwaitUnschedulable(name string) {
	f.T.Helper()
	f.Eventually(fmt.Sprintf("pod %s is unschedulable", name), func() error {
		pod := f.API.Pod("default/" + name)
		if pod.Spec.NodeName != "" {
			f.T.Fatalf("pod %s is bound to %s, want it to be unschedulable", name, pod.Spec.NodeName)
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Reason == v1.PodReasonUnschedulable {
				return nil
			}
		}
		return fmt.Errorf("no condition has the reason %s: %+v", v1.PodReasonUnschedulable, pod.Status.Conditions)
	})
}

// AwaitAllocatable waits until the informers and the cache have the version of a node with this
// allocatable CPU.
func (f *Fixture) AwaitAllocatable(name string, milliCPU int64) {
	f.T.Helper()
	f.Eventually(fmt.Sprintf("the scheduler has node %s with %d allocatable millicores", name, milliCPU), func() error {
		node, err := f.Informers.Core().V1().Nodes().Lister().Get(name)
		if err != nil {
			return err
		}
		if got := node.Status.Allocatable.Cpu().MilliValue(); got != milliCPU {
			return fmt.Errorf("the informer has the node with %d allocatable millicores", got)
		}
		return f.checkNodeReceived(node)
	})
}

// checkNodeReceived returns an error unless the cache has received this version of a node.
func (f *Fixture) checkNodeReceived(node *v1.Node) error {
	if f.Sched.Cache.(*cache.Cache).PendingNode(node.ResourceVersion) {
		return nil
	}
	if info := f.Ranker.Cluster.CopyNode(node.Name); info == nil || info.Node() == nil || info.Node().ResourceVersion != node.ResourceVersion {
		return fmt.Errorf("the cache does not have version %s of the node", node.ResourceVersion)
	}
	return nil
}

// StopAndCheck stops the scheduler and waits until its cache and queue match the API server.
func (f *Fixture) StopAndCheck() {
	f.T.Helper()
	f.Stop()
	f.Eventually("the cache and the queue match the API server", f.CheckState)
}
