package watches

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// other is a namespace besides the default one.
	other = "other"
	// claim is the name of a claim whose volume refers to the Secret indirect.
	claim, indirect = "claim", "indirect"
	// isReferring is the label of the pods of this test.
	isReferring = "is-referring"
)

// ways are all ways in which a pod can refer to a ConfigMap or a Secret, except those of ephemeral containers.
var ways = []func(spec *corev1.PodSpec, name string){
	func(spec *corev1.PodSpec, name string) {
		spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	},
	inContainer(secretEnv), inContainer(configMapEnv), inContainer(secretEnvFrom), inContainer(configMapEnvFrom),
	inInitContainer(secretEnv), inInitContainer(configMapEnv), inInitContainer(secretEnvFrom), inInitContainer(configMapEnvFrom),
	volume(func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}
	}),
	volume(func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local(name)}}
	}),
	projected(func(name string) corev1.VolumeProjection {
		return corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: local(name)}}
	}),
	projected(func(name string) corev1.VolumeProjection {
		return corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: local(name)}}
	}),
	volume(func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{SecretName: name, ShareName: "s"}}
	}),
	volume(func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{CephFS: &corev1.CephFSVolumeSource{Monitors: []string{"m"}, SecretRef: ref(name)}}
	}),
	volume(func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{VolumeID: "v", SecretRef: ref(name)}}
	}),
	volume(func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Driver: "vendor/driver", SecretRef: ref(name)}}
	}),
	volume(func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{CephMonitors: []string{"m"}, RBDImage: "i", SecretRef: ref(name)}}
	}),
	volume(func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{ScaleIO: &corev1.ScaleIOVolumeSource{Gateway: "g", System: "s", VolumeName: "v", SecretRef: ref(name)}}
	}),
	volume(func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "10.0.0.1:3260", IQN: "iqn.2025-01.com.example:a", SessionCHAPAuth: true, SecretRef: ref(name)}}
	}),
	volume(func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{StorageOS: &corev1.StorageOSVolumeSource{VolumeName: "v", SecretRef: ref(name)}}
	}),
	volume(func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "driver.example.com", NodePublishSecretRef: ref(name)}}
	}),
	// The volume of the claim refers to a Secret. The gateway does not see it, so that API servers answer.
	volume(func(string) corev1.VolumeSource {
		return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
	}),
}

func local(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

func ref(name string) *corev1.LocalObjectReference { return &corev1.LocalObjectReference{Name: name} }

func secretEnv(c *corev1.EphemeralContainerCommon, name string) {
	source := &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: local(name), Key: "k"}}
	c.Env = append(c.Env, corev1.EnvVar{Name: "E", ValueFrom: source})
}

func configMapEnv(c *corev1.EphemeralContainerCommon, name string) {
	source := &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: local(name), Key: "k"}}
	c.Env = append(c.Env, corev1.EnvVar{Name: "E", ValueFrom: source})
}

func secretEnvFrom(c *corev1.EphemeralContainerCommon, name string) {
	c.EnvFrom = append(c.EnvFrom, corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local(name)}})
}

func configMapEnvFrom(c *corev1.EphemeralContainerCommon, name string) {
	c.EnvFrom = append(c.EnvFrom, corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local(name)}})
}

// container returns a container that refers to an object.
func container(kind string, number int, add func(*corev1.EphemeralContainerCommon, string), name string) corev1.EphemeralContainerCommon {
	c := corev1.EphemeralContainerCommon{Name: fmt.Sprintf("%s-%d", kind, number), Image: "i"}
	add(&c, name)
	return c
}

func inContainer(add func(*corev1.EphemeralContainerCommon, string)) func(*corev1.PodSpec, string) {
	return func(spec *corev1.PodSpec, name string) {
		spec.Containers = append(spec.Containers, corev1.Container(container("c", len(spec.Containers), add, name)))
	}
}

func inInitContainer(add func(*corev1.EphemeralContainerCommon, string)) func(*corev1.PodSpec, string) {
	return func(spec *corev1.PodSpec, name string) {
		spec.InitContainers = append(spec.InitContainers, corev1.Container(container("i", len(spec.InitContainers), add, name)))
	}
}

func volume(source func(name string) corev1.VolumeSource) func(*corev1.PodSpec, string) {
	return func(spec *corev1.PodSpec, name string) {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v-%d", len(spec.Volumes)), VolumeSource: source(name)})
	}
}

func projected(source func(name string) corev1.VolumeProjection) func(*corev1.PodSpec, string) {
	return volume(func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{source(name)}}}
	})
}

// referred returns the name of an object to which pods may refer.
func referred(random *rand.Rand) string { return fmt.Sprintf("o-%d", random.IntN(10)) }

// testReferences compares who may read which ConfigMap and Secret, while pods that refer to them in all ways are created,
// bound, deleted and created again on several nodes.
func testReferences(t *testing.T, c *cluster, g *gateway, source *rand.Rand) {
	c.prepareReferences(t)
	var clients []*http.Client
	for _, node := range append([]string{"none"}, nodes...) {
		clients = append(clients, c.kubelet(t, node))
	}
	clients = append(clients, c.client(t, "somebody"), c.client(t, "system:node:w-0", "others"))
	// Each way at least once.
	for way := range ways {
		must(t, c.createReferring(context.Background(), namespace, fmt.Sprintf("way-%d", way), nodes[way%len(nodes)], source, way))
	}
	served := func() int { return sum(g, "configmaps") + sum(g, "secrets") }
	before, allowed, repeated := served(), 0, 0
	count := number(t, "NODE_PATH_REQUESTS", 2000)
	for i := range count {
		if i%5 == 0 {
			must(t, ignore(c.changeReferring(source)))
		}
		client, path := clients[source.IntN(len(clients))], referencePath(source)
		code, attempts := c.compare(t, g, client, path)
		repeated += attempts - 1
		if code == http.StatusOK {
			allowed++
		}
	}
	answered := served() - before
	t.Logf("%d of %d requests were allowed, %d served, and %d repeated", allowed, count, answered, repeated)
	if allowed == 0 || allowed == count || answered < allowed/4 {
		t.Error("too little was compared")
	}
	zero := int64(0)
	for _, ns := range []string{namespace, other} {
		must(t, c.admin.CoreV1().Pods(ns).DeleteCollection(context.Background(), metav1.DeleteOptions{GracePeriodSeconds: &zero}, metav1.ListOptions{LabelSelector: isReferring}))
	}
}

// testWithoutReferences starts a gateway that reads neither ConfigMaps nor Secrets.
func testWithoutReferences(t *testing.T, c *cluster) {
	g := c.startGatewayWith(t, "references: false", 8)
	for _, q := range queries(nodes[0])[9:11] {
		if code := status(t, c.kubelet(t, nodes[0]), g.address, q.path+"&resourceVersion=0"); code != http.StatusOK {
			t.Errorf("%s: status %d", q.path, code)
		}
		if page := testcluster.Page(g.metrics, "/metrics"); strings.Contains(page, fmt.Sprintf("kube_gateway_node_path_cache_serving{resource=%q}", q.resource)) {
			t.Errorf("the gateway has a cache of %s", q.resource)
		}
	}
}

// testTooLarge changes large ConfigMaps until a gateway keeps none any more. It forwards then, and says why.
func testTooLarge(t *testing.T, c *cluster) {
	ctx := context.Background()
	g := c.startGatewayWith(t, "references: true, maxReferencedBytes: 16Mi", 10)
	client := c.kubelet(t, nodes[0])
	configMaps, secrets := queries(nodes[0])[9], queries(nodes[0])[10]
	c.isServed(t, g, client, configMaps)
	open := stream(t, client, g.address, configMaps.path+"&watch=true&resourceVersion="+c.version(t))
	large := strings.Repeat("x", 900<<10)
	for i := range 10 {
		_, err := c.admin.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("large-%d", i), Labels: map[string]string{"large": ""}}, Data: map[string]string{"k": large},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	defer func() {
		must(t, c.admin.CoreV1().ConfigMaps(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "large"}))
	}()
	bytes := func() int { return g.metric(`kube_gateway_node_path_cache_bytes{resource="configmaps"}`) }
	testcluster.Eventually(t, startTimeout, "the cache has the objects", func() bool { return bytes() > 9_000_000 })
	// What an object was before a change counts too.
	for i := range 12 {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"change":"%d"}}}`, i)
		_, err := c.admin.CoreV1().ConfigMaps(namespace).Patch(ctx, "large-0", types.MergePatchType, patch, metav1.PatchOptions{})
		must(t, err)
	}
	testcluster.Eventually(t, settleTimeout, "the cache is too large", func() bool {
		return g.metric(`kube_gateway_node_path_cache_too_large{resource="configmaps"}`) == 1
	})
	testcluster.Eventually(t, startTimeout, "nothing is kept", func() bool { return bytes() == 0 })
	readAll(open)
	forwarded := `kube_gateway_node_path_reads_total{reason="not_serving",resource="configmaps"`
	before := g.metric(forwarded)
	if code := status(t, client, g.address, configMaps.path+"&resourceVersion=0"); code != http.StatusOK {
		t.Errorf("status %d", code)
	}
	if g.metric(forwarded) != before+1 {
		t.Error("the list was not forwarded")
	}
	c.isServed(t, g, client, secrets)
	log, err := os.ReadFile(g.log)
	must(t, err)
	if !strings.Contains(string(log), "maxReferencedBytes") {
		t.Error("the log does not say why nothing is served")
	}
}

// sum returns how many requests for a resource were served, or went on from the cache.
func sum(g *gateway, resource string) int {
	return g.served(resource, "list") + g.served(resource, "watch") + g.continued(resource)
}

// compare sends a request to the gateway and to an API server until both answer with the same status: each of them hears of a
// pod a little later than the other. It returns the status, and the number of attempts.
func (c *cluster) compare(t *testing.T, g *gateway, client *http.Client, path string) (code, attempts int) {
	t.Helper()
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(20 * time.Millisecond) {
		attempts++
		ours, theirs := status(t, client, g.address, path), status(t, client, c.Servers[0], path)
		if ours == theirs {
			return ours, attempts
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: status %d, want %d", path, ours, theirs)
		}
	}
}

// referencePath returns a request for an object, and sometimes one for something else.
func referencePath(random *rand.Rand) string {
	name := referred(random)
	switch random.IntN(12) {
	case 0:
		name = indirect
	case 1:
		// Every pod with a token refers to it.
		name = "kube-root-ca.crt"
	}
	path := fmt.Sprintf("/api/v1/namespaces/%s/%s?fieldSelector=metadata.name%%3D%s",
		[]string{namespace, other}[random.IntN(2)], []string{"configmaps", "secrets"}[random.IntN(2)], name)
	switch random.IntN(40) {
	case 0:
		path = "/api/v1/namespaces/default/secrets?"
	case 1:
		path = "/api/v1/secrets?fieldSelector=metadata.name%3D" + name
	case 2:
		path += ",type%3DOpaque"
	case 3:
		path = "/api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3D" + []string{".", "..", "-"}[random.IntN(3)]
	}
	switch random.IntN(4) {
	case 0:
		return path + "&watch=true&resourceVersion=0"
	case 1:
		return path + "&watch=true&allowWatchBookmarks=true&timeout=1m0s&timeoutSeconds=60" + initialEvents
	}
	return path + "&resourceVersion=0"
}

// prepareReferences creates the other namespace, some of the objects, and a volume that refers to a Secret.
func (c *cluster) prepareReferences(t *testing.T) {
	t.Helper()
	ctx, core := context.Background(), c.admin.CoreV1()
	_, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}}, metav1.CreateOptions{})
	must(t, err)
	testcluster.Eventually(t, startTimeout, "there is a service account", func() bool {
		_, err := core.ServiceAccounts(other).Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
	for i := range 5 {
		meta := metav1.ObjectMeta{Name: fmt.Sprintf("o-%d", i)}
		_, err := core.ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{})
		must(t, err)
		_, err = core.Secrets(namespace).Create(ctx, &corev1.Secret{ObjectMeta: meta}, metav1.CreateOptions{})
		must(t, err)
	}
	_, err = core.PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "referring"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			ClaimRef:    &corev1.ObjectReference{Namespace: namespace, Name: claim},
			// kube-controller-manager must not delete it.
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "driver.example.com", VolumeHandle: "v",
				NodePublishSecretRef: &corev1.SecretReference{Namespace: namespace, Name: indirect},
			}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
}

// createReferring creates a pod that refers to random objects in some ways.
func (c *cluster) createReferring(ctx context.Context, ns, name, node string, random *rand.Rand, chosen ...int) error {
	spec := corev1.PodSpec{NodeName: node, SchedulerName: "none", Containers: []corev1.Container{{Name: "c", Image: "i"}}}
	for _, way := range chosen {
		ways[way](&spec, referred(random))
	}
	meta := metav1.ObjectMeta{Name: name, Labels: map[string]string{isReferring: "true"}}
	_, err := c.admin.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{ObjectMeta: meta, Spec: spec}, metav1.CreateOptions{})
	return err
}

// changeReferring creates, binds or deletes a pod that refers to objects, or adds an ephemeral container to it.
func (c *cluster) changeReferring(random *rand.Rand) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	ns := []string{namespace, other}[random.IntN(2)]
	name, node := fmt.Sprintf("ref-%d", random.IntN(names)), nodes[random.IntN(len(nodes))]
	pods, zero := c.admin.CoreV1().Pods(ns), int64(0)
	switch random.IntN(8) {
	case 0, 1, 2:
		if random.IntN(4) == 0 {
			node = ""
		}
		return c.createReferring(ctx, ns, name, node, random, random.Perm(len(ways))[:1+random.IntN(3)]...)
	case 3, 4:
		return pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
	case 5:
		return pods.Delete(ctx, fmt.Sprintf("way-%d", random.IntN(len(ways))), metav1.DeleteOptions{GracePeriodSeconds: &zero})
	case 6:
		return pods.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Target: corev1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{})
	}
	pod, err := pods.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	add := []func(*corev1.EphemeralContainerCommon, string){secretEnv, configMapEnv, secretEnvFrom, configMapEnvFrom}[random.IntN(4)]
	added := container("e", len(pod.Spec.EphemeralContainers), add, referred(random))
	pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: added})
	_, err = pods.UpdateEphemeralContainers(ctx, name, pod, metav1.UpdateOptions{})
	return err
}
