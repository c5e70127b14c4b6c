package verify

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// pod returns a pod that requests one core, with changes.
func pod(name, node string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": "web"}},
		Spec: v1.PodSpec{NodeName: node, Containers: []v1.Container{{
			Name: "main", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}},
		}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func labelled(app string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Labels = map[string]string{"app": app} }
}

func onPort(port int32, ip string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: port, HostIP: ip}} }
}

func selecting(labels map[string]string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.NodeSelector = labels }
}

func tolerating(key string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Tolerations = []v1.Toleration{{Key: key, Operator: v1.TolerationOpExists}}
	}
}

func spreading(key string, skew int32) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			TopologyKey: key, MaxSkew: skew, WhenUnsatisfiable: v1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
		}}
	}
}

// antiAffinity adds a required anti-affinity term against the pods of an app, in the pod's
// namespace or in the namespaces that a selector matches.
func antiAffinity(app, key string, namespaces *metav1.LabelSelector) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
				TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
				NamespaceSelector: namespaces,
			}},
		}}
	}
}

func in(namespace string) func(*v1.Pod) { return func(p *v1.Pod) { p.Namespace = namespace } }

func terminating(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{} }

// testNode has four cores and a maximum of ten pods.
func testNode(name, zone string, change ...func(*v1.Node)) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		v1.LabelHostname: name, v1.LabelTopologyZone: zone,
	}}}
	n.Status.Allocatable = v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourcePods: resource.MustParse("10")}
	for _, c := range change {
		c(n)
	}
	return n
}

func tainted(key string) func(*v1.Node) {
	return func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: key, Effect: v1.TaintEffectNoSchedule}} }
}

// testCluster has nodes a1 and a2 in one zone, b1 in another, and a tainted one in a third.
func testCluster(t *testing.T, pods ...*v1.Pod) *Cluster {
	t.Helper()
	c := New()
	for _, name := range []string{"default", "other"} {
		c.AddNamespace(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}})
	}
	c.AddNode(testNode("a1", "a"))
	c.AddNode(testNode("a2", "a"))
	c.AddNode(testNode("b1", "b"))
	c.AddNode(testNode("c1", "c", tainted("gpu")))
	c.AddNode(testNode("d1", "d", tainted("node.kubernetes.io/not-ready")))
	for _, p := range pods {
		if err := c.AddPod(p); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func TestRulesReportViolations(t *testing.T) {
	zone, host := v1.LabelTopologyZone, v1.LabelHostname
	anywhere := &metav1.LabelSelector{}
	for name, test := range map[string]struct {
		pods []*v1.Pod
		// violations are the expected violations as "rule node pod", in order.
		violations []string
	}{
		"no violation":                 {[]*v1.Pod{pod("1", "a1"), pod("2", "a1")}, nil},
		"a full node":                  {many(4, "a1"), nil},
		"too much of a resource":       {many(5, "a1"), []string{"resources a1 "}},
		"too many pods":                {idle(11, "a1"), []string{"resources a1 "}},
		"terminated pods do not count": {append(many(4, "a1"), pod("5", "a1", func(p *v1.Pod) { p.Status.Phase = v1.PodFailed })), nil},
		"a port used twice":            {[]*v1.Pod{pod("1", "a1", onPort(80, "")), pod("2", "a1", onPort(80, "10.0.0.1"))}, []string{"ports a1 default/2"}},
		"a port on two addresses":      {[]*v1.Pod{pod("1", "a1", onPort(80, "10.0.0.2")), pod("2", "a1", onPort(80, "10.0.0.1"))}, nil},
		"a port on two nodes":          {[]*v1.Pod{pod("1", "a1", onPort(80, "")), pod("2", "a2", onPort(80, ""))}, nil},
		"a taint":                      {[]*v1.Pod{pod("1", "c1")}, []string{"taints c1 default/1"}},
		"a tolerated taint":            {[]*v1.Pod{pod("1", "c1", tolerating("gpu"))}, nil},
		"a transient taint":            {[]*v1.Pod{pod("1", "d1")}, nil},
		"a node selector":              {[]*v1.Pod{pod("1", "b1", selecting(map[string]string{zone: "a"}))}, []string{"node-affinity b1 default/1"}},
		"a node selector that is met":  {[]*v1.Pod{pod("1", "a1", selecting(map[string]string{zone: "a"}))}, nil},
		"spread": {
			[]*v1.Pod{pod("1", "a1", spreading(zone, 1)), pod("2", "a2", spreading(zone, 1))},
			[]string{"spread a2 default/2"},
		},
		"spread within the skew": {[]*v1.Pod{pod("1", "a1", spreading(zone, 2)), pod("2", "a2", spreading(zone, 2))}, nil},
		"spread over hosts":      {[]*v1.Pod{pod("1", "a1", spreading(host, 1)), pod("2", "a2", spreading(host, 1))}, nil},
		"spread over some nodes": {
			[]*v1.Pod{
				pod("1", "a1", selecting(map[string]string{zone: "a"}), spreading(zone, 1)),
				pod("2", "a2", selecting(map[string]string{zone: "a"}), spreading(zone, 1)),
			}, nil,
		},
		"spread without terminating pods": {[]*v1.Pod{pod("1", "a1", spreading(zone, 1), terminating), pod("2", "a2", spreading(zone, 1))}, nil},
		"spread with pods that have no constraint": {
			[]*v1.Pod{pod("1", "a1", spreading(zone, 1)), pod("2", "a2"), pod("3", "a2")}, nil,
		},
		"anti-affinity to its own app": {
			[]*v1.Pod{pod("1", "a1", antiAffinity("web", host, nil)), pod("2", "a1", antiAffinity("web", host, nil))},
			[]string{"anti-affinity a1 default/1", "anti-affinity a1 default/2"},
		},
		"anti-affinity to its own app on another node": {[]*v1.Pod{pod("1", "a1", antiAffinity("web", host, nil)), pod("2", "a2", antiAffinity("web", host, nil))}, nil},
		"anti-affinity to another app in the zone": {
			[]*v1.Pod{pod("1", "a1", antiAffinity("db", zone, nil)), pod("2", "a2", labelled("db"))},
			[]string{"anti-affinity a1 default/1"},
		},
		"anti-affinity to another app in another namespace": {[]*v1.Pod{pod("1", "a1", antiAffinity("db", zone, nil)), pod("2", "a2", labelled("db"), in("other"))}, nil},
		"anti-affinity to another app in any namespace": {
			[]*v1.Pod{pod("1", "a1", antiAffinity("db", zone, anywhere)), pod("2", "a2", labelled("db"), in("other"))},
			[]string{"anti-affinity a1 default/1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			report, err := testCluster(t, test.pods...).Check()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range report.Violations {
				got = append(got, fmt.Sprintf("%s %s %s", v.Rule, v.Node, v.Pod))
			}
			if strings.Join(got, "; ") != strings.Join(test.violations, "; ") {
				t.Errorf("Check() = violations %q, want %q", got, test.violations)
			}
		})
	}
}

// many returns pods that request a core each.
func many(count int, node string) []*v1.Pod {
	var pods []*v1.Pod
	for i := range count {
		pods = append(pods, pod(fmt.Sprint(i), node))
	}
	return pods
}

// idle returns pods that request nothing.
func idle(count int, node string) []*v1.Pod {
	pods := many(count, node)
	for _, p := range pods {
		p.Spec.Containers[0].Resources.Requests = nil
	}
	return pods
}

func TestReadCountsPodsByState(t *testing.T) {
	client := fake.NewClientset(
		testNode("a1", "a"), pod("1", "a1"), pod("2", ""), pod("3", "gone"),
		pod("4", "a1", func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }),
	)
	c, err := Read(t.Context(), client, func(int) {}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	report, err := c.Check()
	if err != nil {
		t.Fatal(err)
	}
	if report.Nodes != 1 || report.Pods != 4 || report.Bound != 1 || report.Pending != 1 || report.Terminated != 1 || report.OnMissingNodes != 1 {
		t.Errorf("Check() = %+v, want 1 node and 4 pods: 1 bound, 1 pending, 1 terminated and 1 on a missing node", report)
	}
	if err := report.Err(); err != nil {
		t.Errorf("Err() = %v, want nil", err)
	}
	var printed strings.Builder
	report.Print(&printed)
	if !strings.Contains(printed.String(), "1 pods on nodes that do not exist") || !strings.Contains(printed.String(), "anti-affinity  ok") {
		t.Errorf("Print() wrote\n%s\nwant the pod on a missing node and anti-affinity without violations", &printed)
	}
}
