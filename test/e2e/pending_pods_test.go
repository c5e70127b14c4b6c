package e2e

import (
	"context"
	"regexp"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

var queues = regexp.MustCompile(`(?m)^(scheduler_pending_pods|scheduler_replica_(objects|members|late_answers_total|assignments_total))\b.*$`)

// logPendingPods logs, if the test fails, why pods are pending, and the queues and the objects of each replica. The
// caller calls it after it has started the replicas, because cleanups run in reverse order and the replicas must run.
func (rs *replicas) logPendingPods(client kubernetes.Interface) {
	rs.t.Cleanup(func() {
		if !rs.t.Failed() {
			return
		}
		list, err := client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{FieldSelector: "spec.nodeName="})
		if err != nil {
			rs.t.Logf("listing the pending pods failed: %v", err)
			return
		}
		reasons := map[string]int{}
		for i := range list.Items {
			reasons[schedulingFailure(&list.Items[i])]++
		}
		rs.t.Logf("%d pods are pending: %v", len(list.Items), reasons)
		for _, r := range rs.all {
			logMetrics(rs.t, r)
		}
	})
}

// schedulingFailure returns the priority of a pending pod, and the reason and message with which it was not scheduled.
func schedulingFailure(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return pod.Spec.PriorityClassName + " " + c.Reason + ": " + c.Message
		}
	}
	return pod.Spec.PriorityClassName + " not attempted"
}

// logMetrics logs the queues and objects of a replica.
func logMetrics(t *testing.T, r *replica) {
	text, err := r.scrape()
	if err != nil {
		t.Logf("%s: %v", r.name, err)
		return
	}
	for _, line := range queues.FindAll(text, -1) {
		t.Logf("%s: %s", r.name, line)
	}
}
