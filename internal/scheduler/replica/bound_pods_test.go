package replica

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// dbTerms is an affinity term that selects the pods with label app=db in a zone.
var dbTerms = []v1.PodAffinityTerm{{
	LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, TopologyKey: v1.LabelTopologyZone,
}}

// newGroupWithThreeRoles starts three replicas of which the first leads. It returns the name of a node that the
// second one owns, and a pod on that node that the third one watches. The pod is not stored yet.
func newGroupWithThreeRoles(t *testing.T) (g *group, node string, db *v1.Pod) {
	t.Helper()
	var nodes []*v1.Node
	for i := range 12 {
		nodes = append(nodes, zoneNode(fmt.Sprintf("%d-node", i), "8", "a"))
	}
	g = newGroup(t, 3, nodes...)
	for _, n := range nodes {
		if g.ownerOf(n.Name) == g.replicas[1] {
			node = n.Name
		}
	}
	for i := 0; db == nil; i++ {
		if name := fmt.Sprintf("%d-db", i); g.watcherOf(name) == "replica-2" {
			db = schedtest.PlainPod(name, "1")
		}
	}
	db.Labels, db.Spec.NodeName = map[string]string{"app": "db"}, node
	return g, node, db
}

// watcherOf returns the name of the replica that watches the object with a UID.
func (g *group) watcherOf(uid string) string {
	return g.replicas[0].member.Table()[membership.SlotOf(types.UID(uid))]
}

// awaitUnschedulable waits until one pod is unschedulable, and no message that could make the leader retry it is
// on its way.
func (g *group) awaitUnschedulable() {
	g.T.Helper()
	g.Eventually("the pod is unschedulable", func() error {
		if _, summary := g.Sched.SchedulingQueue.PendingPods(); summary != "activeQ:0; backoffQ:0; unschedulableEntities:1" {
			return fmt.Errorf("the queue has %s", summary)
		}
		return nil
	})
	time.Sleep(time.Second)
}

// TestBoundPodsMakeWaitingPodsFit has a bound pod appear or change, so that a waiting pod fits. The replica that
// watches the bound pod, the owner of its node and the leader are three replicas. The leader must retry the waiting
// pod after the owner has applied the change, because no later event retries it.
func TestBoundPodsMakeWaitingPodsFit(t *testing.T) {
	needsDB := &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: dbTerms}}
	avoidsDB := &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: dbTerms}}
	for _, test := range []struct {
		name     string
		affinity *v1.Affinity
		// before is called before the waiting pod is created, and change makes it fit.
		before, change func(g *group, db *v1.Pod)
	}{
		{"created with a node", needsDB, nil, func(g *group, db *v1.Pod) { g.API.Put(db) }},
		{"bound by another scheduler", needsDB, func(g *group, db *v1.Pod) {
			pending := db.DeepCopy()
			pending.Spec.NodeName, pending.Spec.SchedulerName = "", "another"
			g.API.Put(pending)
		}, func(g *group, db *v1.Pod) {
			db.Spec.SchedulerName = "another"
			g.API.Put(db)
		}},
		{"labeled", needsDB, func(g *group, db *v1.Pod) {
			unlabeled := db.DeepCopy()
			unlabeled.Labels = nil
			g.API.Put(unlabeled)
		}, func(g *group, db *v1.Pod) { g.API.Put(db) }},
		{"created before its node", needsDB, func(g *group, db *v1.Pod) {
			for i := 0; ; i++ {
				if name := fmt.Sprintf("new-%d", i); g.watcherOf(name) == "replica-1" {
					db.Spec.NodeName = name
					g.API.Put(db)
					return
				}
			}
		}, func(g *group, db *v1.Pod) { g.API.Put(zoneNode(db.Spec.NodeName, "8", "a")) }},
		{"deleted", avoidsDB, func(g *group, db *v1.Pod) { g.API.Put(db) }, func(g *group, db *v1.Pod) { g.API.Remove(db) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			g, _, db := newGroupWithThreeRoles(t)
			if test.before != nil {
				test.before(g, db)
				time.Sleep(time.Second)
			}
			waiting := schedtest.PlainPod("waiting", "1")
			waiting.Spec.Affinity = test.affinity
			g.API.Put(waiting)
			g.awaitUnschedulable()
			test.change(g, db)
			g.awaitBoundSoon("waiting")
			g.awaitConsistent()
		})
	}
}
