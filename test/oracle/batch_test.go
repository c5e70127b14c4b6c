package oracle

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
)

// decideBatch lets the scheduler decide about several equal pods at once. Replicas place such pods with one
// answer to one query. The pods preempt no others, and in whichever order they are scheduled, there must be an
// order of their nodes in which each is a best choice.
func (w *world) decideBatch() {
	template := w.randomPod()
	template.Spec.PriorityClassName, template.Spec.Volumes = "polite", nil
	dropDevices(template)
	draft := w.create(template, "All")
	if draft == nil {
		return
	}
	before, expected := w.expect(draft)
	var batch []*v1.Pod
	for range 2 + w.rand.IntN(5) {
		w.lastNumber++
		pod := template.DeepCopy()
		pod.Name = fmt.Sprintf("pod-%d", w.lastNumber)
		if created := w.create(pod); created != nil {
			batch = append(batch, created)
		}
	}
	nodes, pending := w.awaitBatch(batch)
	w.count(expected)
	w.tally.batches++
	if problem := w.judgeBatch(before, draft, nodes, pending); problem != "" {
		w.tally.wrong++
		w.report(problem, batch[0], before, expected)
	}
	for _, pod := range batch {
		w.deletePod(pod.Namespace, pod.Name)
	}
}

// awaitBatch waits until the scheduler has decided about all pods of a batch. It returns the nodes of those that
// were placed, and the number of the others.
func (w *world) awaitBatch(batch []*v1.Pod) (nodes []string, pending int) {
	uids := sets.New[string]()
	for _, pod := range batch {
		uids.Insert(string(pod.UID))
	}
	for deadline := time.Now().Add(w.settings.patience); ; time.Sleep(20 * time.Millisecond) {
		undecided := 0
		nodes, pending = nil, 0
		for _, pod := range w.listPods() {
			switch {
			case !uids.Has(string(pod.UID)):
			case pod.Spec.NodeName != "":
				nodes = append(nodes, pod.Spec.NodeName)
			default:
				pending++
				if refusal(&pod) == "" {
					undecided++
				}
			}
		}
		if undecided == 0 || time.Now().After(deadline) {
			slices.Sort(nodes)
			return nodes, pending
		}
	}
}

// judgeBatch returns what is wrong with the nodes of a batch of equal pods; "" if nothing is.
func (w *world) judgeBatch(before state, pod *v1.Pod, nodes []string, pending int) string {
	if w.explains(before, pod, nodes, pending) {
		return ""
	}
	return fmt.Sprintf("equal pods are on the nodes %v, and %d are pending; in no order are these the best choices", nodes, pending)
}

// explains returns whether the pods can be placed on the nodes in some order, so that each node is a best choice,
// and whether no node fits for the pending pods afterwards.
func (w *world) explains(before state, pod *v1.Pod, nodes []string, pending int) bool {
	if len(nodes)+pending == 0 {
		return true
	}
	e := w.observer.expect(before, pod)
	if len(nodes) == 0 {
		return e.Feasible == 0
	}
	for i, node := range nodes {
		if e.Best.Has(node) && !slices.Contains(nodes[:i], node) {
			placed := pod.DeepCopy()
			placed.Name = fmt.Sprintf("%s-%d", pod.Name, len(nodes))
			placed.UID, placed.Spec.NodeName = pod.UID+"-"+pod.UID, node
			after := before
			after.pods = append(slices.Clone(before.pods), placed)
			if w.explains(after, pod, slices.Delete(slices.Clone(nodes), i, i+1), pending) {
				return true
			}
		}
	}
	return false
}

// dropDevices removes the requests for devices, because each pod to be placed would allocate some.
func dropDevices(pod *v1.Pod) {
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for _, list := range []v1.ResourceList{containers[i].Resources.Requests, containers[i].Resources.Limits} {
				maps.DeleteFunc(list, func(name v1.ResourceName, _ resource.Quantity) bool { return strings.Contains(string(name), "/") })
			}
		}
	}
}
