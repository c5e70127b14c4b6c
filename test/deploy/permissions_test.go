package deploy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// load makes dist-scheduler send every request that it ever sends: pods with volumes and devices, pods that preempt
// others, and pods that fit nowhere, twice.
const load = `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: chart-high}
value: 1000000
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: chart-static}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: chart-dynamic}
provisioner: chart.example/none
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: chart-static}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: chart-static
  local: {path: /data}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/os, operator: Exists}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: static}
spec: {storageClassName: chart-static, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: dynamic}
spec: {storageClassName: chart-dynamic, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: static}
spec:
  containers: [{name: main, image: none}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: static}}]
---
apiVersion: v1
kind: Pod
metadata: {name: dynamic}
spec:
  containers: [{name: main, image: none}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: dynamic}}]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: chart}
spec:
  extendedResourceName: chart.example/device
  selectors: [{cel: {expression: "device.driver == 'chart.example'"}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: chart}
spec:
  driver: chart.example
  nodeName: NODE
  pool: {name: chart, generation: 1, resourceSliceCount: 1}
  devices: [{name: one}, {name: two}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: device}
spec: {devices: {requests: [{name: one, exactly: {deviceClassName: chart}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: device}
spec:
  containers: [{name: main, image: none, resources: {claims: [{name: device}]}}]
  resourceClaims: [{name: device, resourceClaimName: device}]
---
apiVersion: v1
kind: Pod
metadata: {name: extended}
spec:
  containers: [{name: main, image: none, resources: {requests: {chart.example/device: "1"}, limits: {chart.example/device: "1"}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: low}
spec:
  nodeSelector: {kubernetes.io/hostname: SMALL}
  containers: [{name: main, image: none, resources: {requests: {cpu: "2"}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: nowhere}
spec:
  nodeSelector: {chart.example/there: "yes"}
  containers: [{name: main, image: none, resources: {requests: {cpu: "100000"}}}]
`

const preempting = `
apiVersion: v1
kind: Pod
metadata: {name: high}
spec:
  priorityClassName: chart-high
  nodeSelector: {kubernetes.io/hostname: SMALL}
  containers: [{name: main, image: none, resources: {requests: {cpu: "2"}}}]
`

// permission is a verb on a resource, which may be limited to a name.
type permission struct{ group, resource, verb, name string }

func (p permission) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s.%s %s", p.verb, p.resource, p.group, p.name))
}

// synthetic is the permission that no request asks for: the API server checks it inside of an update of
// resourceclaims/status, if that allocates devices.
var synthetic = permission{"resource.k8s.io", "resourceclaims/binding", "update", ""}

// rare are the permissions for requests that only failures cause, and that the load does not.
var rare = []permission{
	// Another process changed the claim at the same time.
	{"resource.k8s.io", "resourceclaims", "get", ""},
	// The pod got its devices, but cannot be bound.
	{"resource.k8s.io", "resourceclaims/status", "patch", ""},
	{"resource.k8s.io", "resourceclaims/binding", "patch", ""},
	{"resource.k8s.io", "resourceclaims", "delete", ""},
	// Replicas only: a replica looks for the pod of a reservation that was not released in time.
	{"", "pods", "get", ""},
}

// TestPermissions compares what dist-scheduler may do with what it does. So each rule is needed, and none is missing.
func TestPermissions(t *testing.T) {
	c := newCluster(t)
	c.install(t, set("memEtcd.enabled=false", "etcdProxy.enabled=false", "kubeGateway.enabled=false", "warmControllerManager.enabled=false",
		"distScheduler.shareNodes=false", "distScheduler.replicas=1")...)
	schedulers := c.statefulPods(t, release+"-dist-scheduler")
	schedulers[0].awaitReady(t)
	c.exercise(t, schedulers[0])

	account := "system:serviceaccount:" + namespace + ":" + release + "-dist-scheduler"
	allowed := c.allowed(t, release+"-dist-scheduler")
	testcluster.Eventually(t, patience, "each permission is used", func() bool {
		used, _ := c.used(t, account)
		return len(unused(allowed, used)) == 0
	})
	used, refused := c.used(t, account)
	for _, p := range unused(allowed, used) {
		t.Errorf("the chart allows what dist-scheduler does not do: %v", p)
	}
	for _, request := range refused {
		t.Errorf("dist-scheduler may not do what it does: %s", request)
	}
	t.Logf("%d permissions; all used but %d for failures", len(allowed), len(rare))
	t.Run("synthetic", c.checkSynthetic)
}

// TestPermissionsOfReplicas does the same for replicas that share the nodes.
func TestPermissionsOfReplicas(t *testing.T) {
	c := newCluster(t)
	c.install(t, set("memEtcd.enabled=false", "etcdProxy.enabled=false", "kubeGateway.enabled=false", "warmControllerManager.enabled=false",
		"distScheduler.shareNodes=true", "distScheduler.replicas=2")...)
	schedulers := c.statefulPods(t, release+"-dist-scheduler")
	for _, scheduler := range schedulers {
		scheduler.awaitReady(t)
	}
	c.exercise(t, schedulers[0])
	account := "system:serviceaccount:" + namespace + ":" + release + "-dist-scheduler"
	allowed := c.allowed(t, release+"-dist-scheduler")
	isDelete := func(p permission) bool { return p.resource == "leases" && p.verb == "delete" }
	testcluster.Eventually(t, patience, "each permission is used but that to delete Leases", func() bool {
		used, _ := c.used(t, account)
		return !slices.ContainsFunc(unused(allowed, used), func(p permission) bool { return !isDelete(p) })
	})
	for _, scheduler := range schedulers {
		scheduler.stop() // A replica that ends deletes its Lease.
	}
	used, refused := c.used(t, account)
	for _, p := range unused(allowed, used) {
		t.Errorf("the chart allows what dist-scheduler does not do: %v", p)
	}
	for _, request := range refused {
		t.Errorf("dist-scheduler may not do what it does: %s", request)
	}
}

// unused returns the permissions that no request has used, although the load causes such requests.
func unused(allowed, used []permission) []permission {
	return slices.DeleteFunc(slices.Clone(allowed), func(p permission) bool {
		// Informers list only if an API server does not send the first state by a watch.
		isFallback := p.verb == "list" && slices.Contains(allowed, permission{p.group, p.resource, "watch", p.name})
		return p == synthetic || isFallback || slices.Contains(rare, p) || slices.Contains(used, p)
	})
}

// exercise creates the load, and waits until it is handled. A scheduler serves its metrics meanwhile.
func (c *cluster) exercise(t *testing.T, scheduler *container) {
	t.Helper()
	c.K1M(t, "nodes", "create", "--name", c.Name, "--count", "1", "--prefix", "small-", "--cpu", "3")
	nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	small, big := "", ""
	for _, node := range nodes.Items {
		if strings.HasPrefix(node.Name, "small-") {
			small = node.Name
		} else {
			big = node.Name
		}
	}
	fill := strings.NewReplacer("NODE", big, "SMALL", small)
	c.apply(t, fill.Replace(load))
	for _, pod := range []string{"static", "device", "extended", "low"} {
		c.awaitPod(t, pod, "has a node", func(node, _ string) bool { return node != "" })
	}
	c.awaitPod(t, "nowhere", "fits on no node", func(_, reason string) bool { return reason == "Unschedulable" })
	c.apply(t, fill.Replace(preempting))
	c.awaitPod(t, "high", "has preempted another pod", func(node, _ string) bool { return node == small })
	token := c.monitorToken(t)
	testcluster.Eventually(t, patience, "the metrics can be read", func() bool {
		page, err := scheduler.get("/metrics", "https", "https", token)
		return err == nil && strings.Contains(page, "scheduler_schedule_attempts_total")
	})
	if _, err := scheduler.get("/metrics", "https", "https", ""); err == nil {
		t.Error("anybody may read the metrics")
	}
	c.repeatAttempt(t, big)
}

// repeatAttempt lets the scheduler try the pod that fits nowhere again, until an attempt has had the result of the one before:
// that changes the event of the pod.
func (c *cluster) repeatAttempt(t *testing.T, node string) {
	t.Helper()
	changed := func() bool {
		used, _ := c.used(t, "system:serviceaccount:"+namespace+":"+release+"-dist-scheduler")
		return slices.Contains(used, permission{"events.k8s.io", "events", "patch", ""})
	}
	for end := time.Now().Add(patience); !changed(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: an event was changed", patience)
		}
		// An attempt follows when the node gets the label, after a back-off of at most ten seconds.
		for _, value := range []string{`null`, `"yes"`} {
			label := []byte(`{"metadata":{"labels":{"chart.example/there":` + value + `}}}`)
			_, err := c.client.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, label, metav1.PatchOptions{})
			must(t, err)
		}
		for next := time.Now().Add(15 * time.Second); !changed() && time.Now().Before(next); {
			time.Sleep(200 * time.Millisecond)
		}
	}
}

// apply creates objects in the namespace default.
func (c *cluster) apply(t *testing.T, manifests string) {
	t.Helper()
	run(t, []byte(manifests), "kubectl", "--kubeconfig", c.kubeconfig, "apply", "-f", "-")
}

// awaitPod waits until a pod of the namespace default has a state: its node, and the reason why it has none.
func (c *cluster) awaitPod(t *testing.T, name, what string, state func(node, reason string) bool) {
	t.Helper()
	testcluster.Eventually(t, patience, name+" "+what, func() bool {
		pod, err := c.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		reason := ""
		for _, condition := range pod.Status.Conditions {
			if condition.Type == "PodScheduled" {
				reason = condition.Reason
			}
		}
		return state(pod.Spec.NodeName, reason)
	})
}

// monitorToken returns a token of a service account that may read metrics.
func (c *cluster) monitorToken(t *testing.T) string {
	t.Helper()
	c.apply(t, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: monitor}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: chart-monitor}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:monitoring"}
subjects: [{kind: ServiceAccount, name: monitor, namespace: default}]
`)
	token, err := c.client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "monitor", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	return token.Status.Token
}

// allowed returns the permissions in the roles of a service account.
func (c *cluster) allowed(t *testing.T, account string) (all []permission) {
	t.Helper()
	add := func(rules []rbacv1.PolicyRule) {
		for _, rule := range rules {
			for _, p := range expand(rule) {
				if !slices.Contains(all, p) {
					all = append(all, p)
				}
			}
		}
	}
	names := func(subjects []rbacv1.Subject) bool {
		return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
			return s.Kind == "ServiceAccount" && s.Name == account && s.Namespace == namespace
		})
	}
	global, err := c.client.RbacV1().ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, binding := range global.Items {
		if names(binding.Subjects) {
			role, err := c.client.RbacV1().ClusterRoles().Get(t.Context(), binding.RoleRef.Name, metav1.GetOptions{})
			must(t, err)
			add(role.Rules)
		}
	}
	local, err := c.client.RbacV1().RoleBindings(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, binding := range local.Items {
		if names(binding.Subjects) {
			role, err := c.client.RbacV1().Roles(binding.Namespace).Get(t.Context(), binding.RoleRef.Name, metav1.GetOptions{})
			must(t, err)
			add(role.Rules)
		}
	}
	return all
}

// expand returns the permissions of a rule, each with one group, resource, verb and name.
func expand(rule rbacv1.PolicyRule) (all []permission) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				for _, name := range names {
					all = append(all, permission{group, resource, verb, name})
				}
			}
		}
	}
	return all
}

// used returns the permissions that the requests of a user in the audit log used, without and with the name of the
// object, and the requests that were forbidden.
func (c *cluster) used(t *testing.T, user string) (all []permission, refused []string) {
	t.Helper()
	file, err := os.Open(c.audit)
	must(t, err)
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var event struct {
			Verb, RequestURI string
			User             struct{ Username string }
			ObjectRef        struct{ APIGroup, Resource, Subresource, Name string }
			ResponseStatus   struct{ Code int }
		}
		// The last line may still be being written.
		if json.Unmarshal(lines.Bytes(), &event) != nil || event.User.Username != user || event.ObjectRef.Resource == "" {
			continue
		}
		resource := strings.TrimSuffix(event.ObjectRef.Resource+"/"+event.ObjectRef.Subresource, "/")
		// 422 is the answer if a permission is missing that is checked inside of a request.
		if code := event.ResponseStatus.Code; code == 403 || code == 422 {
			refused = append(refused, event.Verb+" "+event.RequestURI)
			continue
		}
		for _, name := range []string{"", nameOf(event.ObjectRef.Name, event.RequestURI)} {
			if p := (permission{event.ObjectRef.APIGroup, resource, event.Verb, name}); !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	must(t, lines.Err())
	return all, refused
}

var nameSelector = regexp.MustCompile(`fieldSelector=metadata\.name%3D([^&]+)`)

// nameOf returns the name of the object of a request. A list or watch may select it.
func nameOf(name, uri string) string {
	if match := nameSelector.FindStringSubmatch(uri); name == "" && match != nil {
		return match[1]
	}
	return name
}

// checkSynthetic removes the permission that is in no request, and sees that a pod with a device gets no node.
func (c *cluster) checkSynthetic(t *testing.T) {
	name := namespace + ":" + release + "-dist-scheduler"
	role, err := c.client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	for i := range role.Rules {
		role.Rules[i].Resources = slices.DeleteFunc(role.Rules[i].Resources, func(r string) bool { return r == synthetic.resource })
	}
	_, err = c.client.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{})
	must(t, err)
	// The API server learns of the change by a watch.
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + namespace + ":" + release + "-dist-scheduler",
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "update", Group: synthetic.group, Resource: "resourceclaims", Subresource: "binding", Namespace: "default",
		},
	}}
	testcluster.Eventually(t, patience, "the permission is removed", func() bool {
		answer, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		must(t, err)
		return !answer.Status.Allowed
	})
	c.apply(t, `
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: refused}
spec: {devices: {requests: [{name: one, exactly: {deviceClassName: chart}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: refused}
spec:
  containers: [{name: main, image: none, resources: {claims: [{name: device}]}}]
  resourceClaims: [{name: device, resourceClaimName: refused}]
`)
	_ = c.client.CoreV1().Pods("default").Delete(t.Context(), "device", metav1.DeleteOptions{})
	testcluster.Eventually(t, patience, "the claim is refused", func() bool {
		_, refused := c.used(t, "system:serviceaccount:"+namespace+":"+release+"-dist-scheduler")
		return slices.ContainsFunc(refused, func(request string) bool { return strings.Contains(request, "resourceclaims/refused/status") })
	})
}

// metric returns the value of a metric without labels; 0 if the page does not have it.
func metric(page, name string) float64 {
	for line := range strings.Lines(page) {
		if text, found := strings.CutPrefix(line, name+" "); found {
			value, _ := strconv.ParseFloat(strings.TrimSpace(text), 64)
			return value
		}
	}
	return 0
}
