package clusterfile

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: c
        image: nginx
        resources: {limits: {cpu: 500m}}
`

const statefulSet = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: data}
spec:
  replicas: 2
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: c, image: db}]}
  volumeClaimTemplates:
  - metadata: {name: disk}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`

const job = `apiVersion: batch/v1
kind: Job
metadata: {name: work}
spec:
  parallelism: 5
  completions: 2
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: work}]}}
`

// loadPods reads a manifest.
func loadPods(t *testing.T, content string, cluster *Objects) *Pods {
	t.Helper()
	pods, err := LoadPods(Stdin, strings.NewReader(content), cluster)
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

func podNames(pods *Pods) string {
	var names []string
	for _, pod := range pods.List {
		names = append(names, pod.Namespace+"/"+pod.Name)
	}
	return strings.Join(names, " ")
}

// TestPodsOfWorkloads makes the pods of each kind of workload.
func TestPodsOfWorkloads(t *testing.T) {
	cluster := New()
	pods := loadPods(t, deployment+"---\n"+statefulSet+"---\n"+job+"---\n"+strings.Replace(job, "parallelism", "suspend: true\n  parallelism", 1)+
		"---\n"+named(podJSON, "single")+"\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n", cluster)
	if got, want := podNames(pods), "default/web-0 default/web-1 default/web-2 data/db-0 data/db-1 default/work-0 default/work-1 default/single"; got != want {
		t.Errorf("LoadPods() = %s, want %s", got, want)
	}
	web := pods.List[0]
	if web.Spec.SchedulerName != "default-scheduler" || web.Spec.Containers[0].Resources.Requests.Cpu().MilliValue() != 500 || *web.Spec.Priority != 0 {
		t.Errorf("pod web-0 has the spec %+v, want the defaults of the API server", web.Spec)
	}
	if owner := metav1.GetControllerOf(web); owner == nil || owner.Kind != "ReplicaSet" || cluster.byKind["ReplicaSet"]["default/web"].object == nil {
		t.Errorf("pod web-0 is owned by %v, want a ReplicaSet of the cluster", owner)
	}
	db := pods.List[4]
	if claim := db.Spec.Volumes[len(db.Spec.Volumes)-1].PersistentVolumeClaim; claim == nil || claim.ClaimName != "disk-db-1" || cluster.byKind["PersistentVolumeClaim"]["data/disk-db-1"].object == nil {
		t.Errorf("pod db-1 has the volumes %v, want the claim disk-db-1 of the cluster", db.Spec.Volumes)
	}
	if len(pods.Notes) != 1 || !strings.Contains(pods.Notes[0], "1 ConfigMap, 1 suspended Job") {
		t.Errorf("the notes are %q, want one about the ignored objects", pods.Notes)
	}
}

// TestKindsOfOtherGroupsAreIgnored reads a Job of Volcano, which is no Job of Kubernetes.
func TestKindsOfOtherGroupsAreIgnored(t *testing.T) {
	pods := loadPods(t, "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: x}\n---\n"+named(podJSON, "single"), New())
	if got := podNames(pods); got != "default/single" {
		t.Errorf("LoadPods() = %s, want default/single", got)
	}
	if len(pods.Notes) != 1 || !strings.Contains(pods.Notes[0], "1 Job") {
		t.Errorf("the notes are %q, want one about the ignored Job", pods.Notes)
	}
}

// TestBadManifestsAreRefused checks errors of manifests.
func TestBadManifestsAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ content, want string }{
		"no pods":            {"apiVersion: v1\nkind: Service\nmetadata: {name: x}\n", "it has no pods"},
		"a misspelled field": {strings.Replace(named(podJSON, "p"), `"spec":{`, `"spec":{"nodeSelektor":{},`, 1), "nodeSelektor"},
		"a pod twice":        {named(podJSON, "p") + named(podJSON, "p"), "pod default/p is in it twice"},
		"no name":            {`{"apiVersion":"v1","kind":"Pod","spec":{}}`, "a pod has no name"},
		"an unknown class":   {strings.Replace(named(podJSON, "p"), `"spec":{`, `"spec":{"priorityClassName":"gold",`, 1), `the priority class "gold"`},
		"too many pods":      {strings.Replace(deployment, "replicas: 3", "replicas: 2000000000", 1), "more than 100000 pods"},
		"no template":        {"apiVersion: v1\nkind: ReplicationController\nmetadata: {name: x}\nspec: {replicas: 1}\n", "has no template"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := LoadPods(Stdin, strings.NewReader(c.content), New())
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("LoadPods() = error %v, want one line with %q", err, c.want)
			}
		})
	}
}

// TestPriorities checks that a pod gets the priority of its class, of a system class, or of the default class.
func TestPriorities(t *testing.T) {
	cluster := New()
	for _, class := range []*schedulingv1.PriorityClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, Value: 100, PreemptionPolicy: ptr.To(v1.PreemptNever)},
		{ObjectMeta: metav1.ObjectMeta{Name: "plain"}, Value: 7, GlobalDefault: true},
	} {
		if err := cluster.Add(class, "test"); err != nil {
			t.Fatal(err)
		}
	}
	for class, want := range map[string]int32{"gold": 100, "": 7, "system-node-critical": 2_000_001_000} {
		pod := loadPods(t, strings.Replace(named(podJSON, "p"), `"spec":{`, `"spec":{"priorityClassName":"`+class+`",`, 1), cluster).List[0]
		if *pod.Spec.Priority != want {
			t.Errorf("a pod of class %q has priority %d, want %d", class, *pod.Spec.Priority, want)
		}
		if never := ptr.Deref(pod.Spec.PreemptionPolicy, "") == v1.PreemptNever; never != (class == "gold") {
			t.Errorf("a pod of class %q has the preemption policy %v", class, pod.Spec.PreemptionPolicy)
		}
	}
}
