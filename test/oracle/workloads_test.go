package oracle

import (
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var (
	apps       = []string{"web", "db", "cache", "job"}
	namespaces = []string{"default", "team-a", "team-b"}
	// priorities are those of the PriorityClasses. Pods of the class "polite" never preempt.
	priorities = map[string]int32{"low": 0, "middle": 100, "high": 1000, "polite": 500}
)

// addClusterObjects creates what all worlds of a cluster share: namespaces, and classes of priorities,
// sandboxes and devices.
func (w *world) addClusterObjects() {
	for _, name := range namespaces[1:] {
		namespace := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		_, err := w.client.CoreV1().Namespaces().Create(w.ctx, namespace, metav1.CreateOptions{})
		w.must(err)
	}
	for _, name := range sortedKeys(priorities) {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: priorities[name]}
		if name == "polite" {
			class.PreemptionPolicy = ptr.To(v1.PreemptNever)
		}
		_, err := w.client.SchedulingV1().PriorityClasses().Create(w.ctx, class, metav1.CreateOptions{})
		w.must(err)
	}
	sandbox := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "sandbox"}, Handler: "sandbox", Overhead: &nodev1.Overhead{
		PodFixed: v1.ResourceList{v1.ResourceCPU: quantity("250m"), v1.ResourceMemory: quantity("120Mi")},
	}}
	_, err := w.client.NodeV1().RuntimeClasses().Create(w.ctx, sandbox, metav1.CreateOptions{})
	w.must(err)
	w.addDeviceClasses()
}

// addNamespaces gives the namespaces the labels that they have at the start of a world.
func (w *world) addNamespaces() {
	for _, name := range namespaces {
		w.labelNamespace(name, name != "default")
	}
}

// changeNamespace changes a label of a namespace that namespace selectors of affinity terms select by.
func (w *world) changeNamespace() { w.labelNamespace(pick(w, namespaces...), w.chance(50)) }

func (w *world) labelNamespace(name string, team bool) {
	namespace, err := w.client.CoreV1().Namespaces().Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	delete(namespace.Labels, "team")
	if team {
		namespace.Labels["team"] = "yes"
	}
	_, err = w.client.CoreV1().Namespaces().Update(w.ctx, namespace, metav1.UpdateOptions{})
	w.must(err)
}

// addWorkloads creates ReplicaSets and a Service, from which topology spread gets its default constraints.
// There is no controller that would create pods for them.
func (w *world) addWorkloads() {
	for _, app := range apps {
		labels := map[string]string{"app": app}
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: "default"}}
		set.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
		set.Spec.Template.Labels = labels
		set.Spec.Template.Spec.Containers = []v1.Container{{Name: "main", Image: "nginx"}}
		_, err := w.client.AppsV1().ReplicaSets("default").Create(w.ctx, set, metav1.CreateOptions{})
		w.must(err)
	}
	w.addService()
}

func (w *world) addService() {
	service := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "team-a"}}
	service.Spec.Selector = map[string]string{"app": "web"}
	service.Spec.Ports = []v1.ServicePort{{Port: 80}}
	_, err := w.client.CoreV1().Services("team-a").Create(w.ctx, service, metav1.CreateOptions{})
	w.must(err)
}

// changeWorkloads changes what has an effect on default spread constraints: it deletes or creates the Service, or
// changes what it selects.
func (w *world) changeWorkloads() {
	services := w.client.CoreV1().Services("team-a")
	service, err := services.Get(w.ctx, "web", metav1.GetOptions{})
	if gone(err) {
		w.addService()
		return
	}
	w.must(err)
	if w.chance(40) {
		w.must(services.Delete(w.ctx, "web", metav1.DeleteOptions{}))
		return
	}
	service.Spec.Selector = map[string]string{"app": pick(w, apps...)}
	_, err = services.Update(w.ctx, service, metav1.UpdateOptions{})
	w.must(err)
}

// changeBudget changes the pods that a disruption budget protects, or how many may be disrupted.
func (w *world) changeBudget() {
	budgets := w.client.PolicyV1().PodDisruptionBudgets("default")
	budget, err := budgets.Get(w.ctx, pick(w, apps[:2]...), metav1.GetOptions{})
	w.must(err)
	if w.chance(50) {
		budget.Status.DisruptionsAllowed = w.rand.Int32N(3)
		_, err = budgets.UpdateStatus(w.ctx, budget, metav1.UpdateOptions{})
	} else {
		budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(w, apps...)}}
		_, err = budgets.Update(w.ctx, budget, metav1.UpdateOptions{})
	}
	w.must(err)
}

// addBudgets creates two disruption budgets: one allows no disruption, one allows one. The controller that would
// change their status does not run.
func (w *world) addBudgets() {
	for i, app := range apps[:2] {
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: "default"}}
		budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
		budgets := w.client.PolicyV1().PodDisruptionBudgets("default")
		budget, err := budgets.Create(w.ctx, budget, metav1.CreateOptions{})
		w.must(err)
		budget.Status.DisruptionsAllowed = int32(i)
		_, err = budgets.UpdateStatus(w.ctx, budget, metav1.UpdateOptions{})
		w.must(err)
	}
}

// clear deletes all objects of the world.
func (w *world) clear() {
	now, all := metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}, metav1.ListOptions{}
	core := w.client.CoreV1()
	for _, namespace := range namespaces {
		w.must(core.Pods(namespace).DeleteCollection(w.ctx, now, all))
		w.must(core.PersistentVolumeClaims(namespace).DeleteCollection(w.ctx, now, all))
	}
	w.must(core.PersistentVolumes().DeleteCollection(w.ctx, now, all))
	w.must(w.client.StorageV1().StorageClasses().DeleteCollection(w.ctx, now, all))
	w.must(w.client.AppsV1().ReplicaSets("default").DeleteCollection(w.ctx, now, all))
	w.must(w.client.PolicyV1().PodDisruptionBudgets("default").DeleteCollection(w.ctx, now, all))
	w.must(w.client.StorageV1().CSINodes().DeleteCollection(w.ctx, now, all))
	if err := core.Services("team-a").Delete(w.ctx, "web", now); !gone(err) {
		w.must(err)
	}
	w.must(w.client.ResourceV1().ResourceSlices().DeleteCollection(w.ctx, now, all))
	w.must(core.Nodes().DeleteCollection(w.ctx, now, all))
	w.removeUnusedClaims(sharedClaim)
	w.settle(settleWorld)
	w.cluster.awaitReplicas(w.t, 0, 0)
}

// removeUnusedClaims deletes the resource claims of pods that no longer exist, as the controllers of
// Kubernetes do, and those with the given names.
func (w *world) removeUnusedClaims(also ...string) {
	pods := map[string]bool{}
	for _, pod := range w.listPods() {
		pods[pod.Namespace+"/"+pod.Name] = true
	}
	list, err := w.client.ResourceV1().ResourceClaims("").List(w.ctx, metav1.ListOptions{})
	w.must(err)
	for _, claim := range list.Items {
		owner := claim.OwnerReferences
		if !slices.Contains(also, claim.Name) && (len(owner) == 0 || pods[claim.Namespace+"/"+owner[0].Name]) {
			continue
		}
		claims := w.client.ResourceV1().ResourceClaims(claim.Namespace)
		if len(claim.Finalizers) > 0 {
			claim.Finalizers = nil
			if _, err := claims.Update(w.ctx, &claim, metav1.UpdateOptions{}); err != nil {
				// The scheduler changes the claim right now. The next call tries again.
				w.t.Logf("%s: removing the finalizer of claim %s: %v", w.describe(), claim.Name, err)
				continue
			}
		}
		if err := claims.Delete(w.ctx, claim.Name, metav1.DeleteOptions{}); !gone(err) {
			w.must(err)
		}
	}
}

// gone reports whether an error says that the object does not exist.
func gone(err error) bool { return apierrors.IsNotFound(err) }

// exists reports whether an error says that the object exists already.
func exists(err error) bool { return apierrors.IsAlreadyExists(err) }

// invalid reports whether an error says that the API server does not accept the object.
func invalid(err error) bool { return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) }

func errNotBound(claim v1.PersistentVolumeClaim) error {
	return fmt.Errorf("the claim %s/%s is %s", claim.Namespace, claim.Name, claim.Status.Phase)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
