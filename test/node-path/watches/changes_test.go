package watches

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	namespace = "default"
	// names is the number of names from which random objects take theirs, so that they are created again.
	names = 12
)

// nodes are the nodes of the test. The simulator does not know them.
var nodes = []string{"w-0", "w-1", "w-2"}

// prepare creates the nodes, and waits until pods can be created.
func (c *cluster) prepare(t *testing.T) {
	t.Helper()
	ctx := context.Background()
	for _, name := range nodes {
		_, err := c.admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
	}
	for _, name := range nodes {
		must(t, c.requestCertificate(ctx, "of-"+name, name))
	}
	testcluster.Eventually(t, startTimeout, "there is a service account", func() bool {
		_, err := c.admin.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
	for _, name := range nodes {
		must(t, c.writeReferenced(ctx, "of-"+name, "first"))
		must(t, c.createReferenceTo(ctx, "of-"+name, name))
	}
}

// changeRandomly changes a random object. Conflicts and objects that exist already or not are no errors.
func (c *cluster) changeRandomly(random *rand.Rand) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	name := fmt.Sprintf("r-%d", random.IntN(names))
	switch random.IntN(12) {
	case 10, 11:
		return c.changeLease(ctx, name, random)
	case 0, 1, 2:
		return c.createPod(ctx, name, random)
	case 3, 4:
		zero := int64(0)
		return c.admin.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
	case 5:
		return c.bindPod(ctx, name, random)
	case 6:
		return c.annotatePod(ctx, name, random)
	case 7:
		return c.annotateNode(ctx, nodes[random.IntN(len(nodes))])
	case 8:
		return c.changeService(ctx, name, random)
	default:
		return c.changeOthers(ctx, name, random)
	}
}

func ignore(err error) error {
	if errors.IsNotFound(err) || errors.IsAlreadyExists(err) || errors.IsConflict(err) || errors.IsInvalid(err) {
		return nil
	}
	return err
}

// createPod creates a pod that has a node, or is bound later.
func (c *cluster) createPod(ctx context.Context, name string, random *rand.Rand) error {
	node := append([]string{""}, nodes...)[random.IntN(len(nodes)+1)]
	_, err := c.admin.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"size": fmt.Sprintf("%0*d", random.IntN(3000), 1)}},
		Spec: corev1.PodSpec{
			NodeName: node,
			// Only the test binds it.
			SchedulerName: "none",
			Containers:    []corev1.Container{{Name: "c", Image: "i"}},
		},
	}, metav1.CreateOptions{})
	return err
}

func (c *cluster) bindPod(ctx context.Context, name string, random *rand.Rand) error {
	return c.admin.CoreV1().Pods(namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Target:     corev1.ObjectReference{Kind: "Node", Name: nodes[random.IntN(len(nodes))]},
	}, metav1.CreateOptions{})
}

func (c *cluster) annotatePod(ctx context.Context, name string, random *rand.Rand) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"time":"%d"}},"status":{"message":"%d"}}`, time.Now().UnixNano(), random.Int())
	_, err := c.admin.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func (c *cluster) annotateNode(ctx context.Context, name string) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"time":"%d"}}}`, time.Now().UnixNano())
	_, err := c.admin.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// changeService creates, labels or deletes a Service. It enters and leaves the selectors of kubelet and kube-proxy.
func (c *cluster) changeService(ctx context.Context, name string, random *rand.Rand) error {
	services := c.admin.CoreV1().Services(namespace)
	switch random.IntN(4) {
	case 0:
		return services.Delete(ctx, name, metav1.DeleteOptions{})
	case 1:
		value := []string{`"x"`, "null"}[random.IntN(2)]
		patch := fmt.Sprintf(`{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":%s}}}`, value)
		_, err := services.Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}, Selector: map[string]string{"app": strconv.Itoa(random.IntN(3))}},
	}
	if random.IntN(2) == 0 {
		service.Spec.ClusterIP = corev1.ClusterIPNone
	}
	_, err := services.Create(ctx, service, metav1.CreateOptions{})
	return err
}

// changeOthers creates or deletes objects of the other kinds that are served.
func (c *cluster) changeOthers(ctx context.Context, name string, random *rand.Rand) error {
	var err error
	created, deleted := metav1.CreateOptions{}, metav1.DeleteOptions{}
	labels := map[string]string{}
	if random.IntN(2) == 0 {
		labels["service.kubernetes.io/headless"] = ""
	}
	switch random.IntN(14) {
	case 13:
		err = c.admin.CoreV1().ConfigMaps(namespace).Delete(ctx, "of-"+nodes[random.IntN(len(nodes))], deleted)
	case 12:
		err = c.admin.CoreV1().Secrets(namespace).Delete(ctx, "of-"+nodes[random.IntN(len(nodes))], deleted)
	case 10, 11:
		err = c.writeReferenced(ctx, "of-"+nodes[random.IntN(len(nodes))], fmt.Sprintf("%0*d", random.IntN(3000), 1))
	case 9:
		err = c.requestCertificate(ctx, name, nodes[random.IntN(len(nodes))])
	case 8:
		err = c.admin.CertificatesV1().PodCertificateRequests(namespace).Delete(ctx, name, deleted)
	case 0, 1:
		_, err = c.admin.DiscoveryV1().EndpointSlices(namespace).Create(ctx, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, AddressType: discoveryv1.AddressTypeIPv4,
		}, created)
	case 2:
		err = c.admin.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, name, deleted)
	case 3:
		_, err = c.admin.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}}, created)
	case 4:
		err = c.admin.StorageV1().CSIDrivers().Delete(ctx, name, deleted)
	case 5:
		_, err = c.admin.NodeV1().RuntimeClasses().Create(ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: "h"}, created)
	case 6:
		err = c.admin.NodeV1().RuntimeClasses().Delete(ctx, name, deleted)
	default:
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"time":"%d"}}}`, time.Now().UnixNano())
		_, err = c.admin.DiscoveryV1().EndpointSlices(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return err
}

// writeReferenced creates or changes a ConfigMap and a Secret.
func (c *cluster) writeReferenced(ctx context.Context, name, value string) error {
	configMaps, secrets := c.admin.CoreV1().ConfigMaps(namespace), c.admin.CoreV1().Secrets(namespace)
	object := metav1.ObjectMeta{Name: name}
	patch := fmt.Appendf(nil, `{"data":{"k":%q}}`, value)
	_, err := configMaps.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if errors.IsNotFound(err) {
		_, err = configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: object, Data: map[string]string{"k": value}}, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	patch = fmt.Appendf(nil, `{"stringData":{"k":%q}}`, value)
	_, err = secrets.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if errors.IsNotFound(err) {
		_, err = secrets.Create(ctx, &corev1.Secret{ObjectMeta: object, StringData: map[string]string{"k": value}}, metav1.CreateOptions{})
	}
	return err
}

// createReferenceTo creates a pod of a node that refers to a ConfigMap and a Secret. It stays.
func (c *cluster) createReferenceTo(ctx context.Context, name, node string) error {
	_, err := c.admin.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "refers-to-" + name},
		Spec: corev1.PodSpec{
			NodeName: node,
			// Nobody reports that the node is ready.
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "c", Image: "i", EnvFrom: []corev1.EnvFromSource{
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}},
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}},
			}}},
		},
	}, metav1.CreateOptions{})
	return err
}

// requestCertificate creates a PodCertificateRequest of a node.
func (c *cluster) requestCertificate(ctx context.Context, name, node string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
	if err != nil {
		return err
	}
	stub, err := x509.CreateCertificateRequest(cryptorand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	seconds := int32(3600)
	_, err = c.admin.CertificatesV1().PodCertificateRequests(namespace).Create(ctx, &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: "example.com/test", PodName: "p", PodUID: "p", ServiceAccountName: "default", ServiceAccountUID: "s",
			NodeName: types.NodeName(node), NodeUID: "n", MaxExpirationSeconds: &seconds, StubPKCS10Request: stub,
		},
	}, metav1.CreateOptions{})
	return err
}

// changeLease creates, changes or deletes a Lease.
func (c *cluster) changeLease(ctx context.Context, name string, random *rand.Rand) error {
	leases := c.admin.CoordinationV1().Leases([]string{namespace, "kube-node-lease"}[random.IntN(2)])
	switch random.IntN(6) {
	case 0:
		return leases.Delete(ctx, name, metav1.DeleteOptions{})
	case 1, 2:
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if random.IntN(2) == 0 {
			lease.Labels = map[string]string{"b": "1", "a": strconv.Itoa(random.IntN(3))}
			lease.Annotations = map[string]string{"text": fmt.Sprintf("%0*d", random.IntN(3000), 1)}
			lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: "u", Controller: new(random.IntN(2) == 0)}}
			lease.Finalizers = []string{"example.com/test"}[:random.IntN(2)]
		}
		if random.IntN(2) == 0 {
			lease.Spec = coordinationv1.LeaseSpec{
				HolderIdentity: new("h"), LeaseDurationSeconds: new(int32(40)), AcquireTime: &metav1.MicroTime{Time: time.Now()}, LeaseTransitions: new(random.Int32()),
			}
		}
		_, err := leases.Create(ctx, lease, metav1.CreateOptions{})
		return err
	case 3:
		// An object with a finalizer that is being deleted.
		_, err := leases.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		return err
	}
	patch := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
	_, err := leases.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fmt.Sprintf("manager-%d", random.IntN(3))})
	return err
}

// marks are versions of objects that were changed last: of pods by node, of nodes by name, of Services and of Leases.
type marks struct {
	pods, nodes      map[string]int64
	services, leases int64
}

// of returns the version that a watch of a resource must see, as the kubelet of a node or as a user; 0 if there is none.
func (m marks) of(resource, node string) int64 {
	return map[string]int64{"pods": m.pods[node], "nodes": m.nodes[node], "services": m.services, "leases": m.leases}[resource]
}

// mark changes an object for each watch.
func (c *cluster) mark(t *testing.T) marks {
	t.Helper()
	ctx := context.Background()
	pods, objects := map[string]int64{}, map[string]int64{}
	version := func(object metav1.Object) int64 {
		number, err := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
		must(t, err)
		return number
	}
	suffix := strconv.FormatInt(time.Now().UnixNano(), 36)
	for _, node := range nodes {
		pod, err := c.admin.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "mark-" + node + "-" + suffix},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		must(t, err)
		pods[node] = version(pod)
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"mark":%q}}}`, suffix)
		_, err = c.admin.CertificatesV1().PodCertificateRequests(namespace).Patch(ctx, "of-"+node, types.MergePatchType, patch, metav1.PatchOptions{})
		must(t, err)
		must(t, c.writeReferenced(ctx, "of-"+node, suffix))
		must(t, c.annotateNode(ctx, node))
		object, err := c.admin.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		must(t, err)
		objects[node] = version(object)
	}
	service, err := c.admin.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "mark-" + suffix}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	must(t, err)
	lease, err := c.admin.CoordinationV1().Leases(namespace).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "mark-" + suffix},
	}, metav1.CreateOptions{})
	must(t, err)
	return marks{pods, objects, version(service), version(lease)}
}
