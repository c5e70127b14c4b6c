package deploy

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/constants"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/certs"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/controlplane"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/etcd"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/kubeconfig"
	configutil "k8s.io/kubernetes/cmd/kubeadm/app/util/config"

	"github.com/k8s-1m/k8s-1m/test/ownnetwork"
	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	kubeadmDir = "../../deploy/kubeadm"
	// kubernetesVersion is the version in go.mod; kubeadm reads it from its own build.
	kubernetesVersion = "v1.37.1"
	configMaps        = 200
)

// inKubeadm starts the test in its own network, and skips it unless CHART=full. It returns the directory of the binaries.
func inKubeadm(t *testing.T) string {
	t.Helper()
	if os.Getenv("CHART") != "full" {
		t.Skip("starts a control plane; run `make kubeadm`")
	}
	bin := testcluster.Binaries(t, "etcd", "etcdctl", "etcdutl", "mem_etcd", "k1m", "kube-apiserver", "kube-scheduler", "dist-scheduler", "kubeadm")
	if !ownnetwork.Enter(t, "30m") {
		return ""
	}
	return bin
}

// initialize does what kubeadm init does on a machine: it writes certificates, kubeconfigs and manifests. A CA that is
// there is used.
func initialize(t *testing.T, m *machine, external []string) {
	t.Helper()
	config, err := configutil.DefaultedStaticInitConfiguration()
	must(t, err)
	config.KubernetesVersion, config.NodeRegistration.Name, config.LocalAPIEndpoint.AdvertiseAddress = kubernetesVersion, m.name, m.ip
	config.EncryptionAlgorithm = kubeadm.EncryptionAlgorithmECDSAP256
	config.CertificatesDir = m.path("etc/kubernetes/pki")
	config.ControlPlaneEndpoint = m.ip + ":6443"
	must(t, certs.CreatePKIAssets(config))
	for _, file := range []string{constants.SuperAdminKubeConfigFileName, constants.SchedulerKubeConfigFileName} {
		must(t, kubeconfig.CreateKubeConfigFile(file, m.path("etc/kubernetes"), config))
	}
	config.CertificatesDir = "/etc/kubernetes/pki"
	manifests := m.path("etc/kubernetes/manifests")
	if external == nil {
		must(t, etcd.CreateLocalEtcdStaticPodManifestFile(manifests, "", m.name, &config.ClusterConfiguration, &config.LocalAPIEndpoint, false))
	} else {
		config.Etcd = kubeadm.Etcd{External: &kubeadm.ExternalEtcd{
			Endpoints: external, CAFile: "/etc/kubernetes/pki/etcd/ca.crt",
			CertFile: "/etc/kubernetes/pki/apiserver-etcd-client.crt", KeyFile: "/etc/kubernetes/pki/apiserver-etcd-client.key",
		}}
	}
	must(t, controlplane.CreateStaticPodFiles(manifests, "", &config.ClusterConfiguration, &config.LocalAPIEndpoint, false,
		constants.KubeAPIServer, constants.KubeScheduler))
}

// TestKubeadm runs the commands of deploy/kubeadm/README.md on a control plane, and compares all objects.
func TestKubeadm(t *testing.T) {
	bin := inKubeadm(t)
	if bin == "" {
		return
	}
	m := newMachine(t, bin, 1)
	initialize(t, m, nil)
	client := m.client(t)
	m.awaitServing(t, client)
	m.createObjects(t, client)
	m.awaitScheduled(t, client, "first", "default-scheduler")

	sections := commands(t, filepath.Join(kubeadmDir, "README.md"))
	preparation := sections[""]
	step := func(heading string, after func()) {
		if sections[heading] == "" {
			t.Fatalf("the guide has no commands for %q", heading)
		}
		before := m.store(t)
		m.run(t, kubeadmDir, preparation+sections[heading])
		m.awaitServing(t, client)
		compare(t, heading, before, m.store(t))
		after()
		delete(sections, heading)
	}
	step("From etcd to mem_etcd", func() {
		if !strings.Contains(m.pods["etcd.yaml"].manifest, "- mem_etcd\n") {
			t.Error("the store is etcd")
		}
		m.createPod(t, client, "with-mem-etcd")
		m.awaitScheduled(t, client, "with-mem-etcd", "default-scheduler")
	})
	step("Back to etcd", func() {
		if strings.Contains(m.pods["etcd.yaml"].manifest, "mem_etcd") {
			t.Error("the store is mem_etcd")
		}
		m.createPod(t, client, "with-etcd")
		m.awaitScheduled(t, client, "with-etcd", "default-scheduler")
	})
	step("From kube-scheduler to dist-scheduler", func() {
		if !strings.Contains(m.pods["kube-scheduler.yaml"].manifest, "- dist-scheduler\n") {
			t.Error("the scheduler is kube-scheduler")
		}
		m.createPod(t, client, "with-dist-scheduler")
		m.awaitScheduled(t, client, "with-dist-scheduler", "default-scheduler")
	})
	step("Back to kube-scheduler", func() {
		m.createPod(t, client, "with-kube-scheduler")
		m.awaitScheduled(t, client, "with-kube-scheduler", "default-scheduler")
	})
	for heading := range sections {
		if heading == "" || memberSections[heading] {
			delete(sections, heading)
		}
	}
	if len(sections) > 0 {
		t.Errorf("these commands of the guide were not run: %v", sections)
	}
}

// commands returns the blocks of shell commands of a page, by their heading. Those before the first heading have the
// heading "".
func commands(t *testing.T, path string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	all, heading, inBlock := map[string]string{}, "", false
	for line := range strings.Lines(string(text)) {
		switch {
		case inBlock && strings.TrimSpace(line) == "```":
			inBlock = false
		case inBlock:
			all[heading] += line
		case strings.HasPrefix(line, "## "):
			heading = strings.TrimSpace(line[3:])
		case strings.TrimSpace(line) == "```sh":
			inBlock = true
		}
	}
	return all
}

// client returns a client of the machine's API server.
func (m *machine) client(t *testing.T) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", m.path("etc/kubernetes", constants.SuperAdminKubeConfigFileName))
	must(t, err)
	config.QPS, config.Timeout = -1, 20*time.Second
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	return client
}

// awaitServing waits until the API server is ready.
func (m *machine) awaitServing(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	m.await(t, "the API server is ready", func() bool {
		text, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
		return err == nil && string(text) == "ok"
	})
}

// createObjects creates objects of several kinds: a node, which fits every pod, and some that expire.
func (m *machine) createObjects(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	_, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{})
	must(t, err)
	for i := range configMaps {
		object := metav1.ObjectMeta{Name: fmt.Sprintf("object-%d", i)}
		config := &corev1.ConfigMap{ObjectMeta: object, Data: map[string]string{"key": strings.Repeat("v", i)}}
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), config, metav1.CreateOptions{})
		must(t, err)
		if i%10 == 0 {
			secret := &corev1.Secret{ObjectMeta: object, StringData: map[string]string{"key": "secret"}}
			_, err := client.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{})
			must(t, err)
			_, err = client.EventsV1().Events("default").Create(t.Context(), &eventsv1.Event{
				ObjectMeta: object, EventTime: metav1.NowMicro(), ReportingController: "test", ReportingInstance: "test",
				Action: "Test", Reason: "Test", Type: "Normal", Regarding: corev1.ObjectReference{Namespace: "default"},
			}, metav1.CreateOptions{})
			must(t, err)
		}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	node, err = client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	must(t, err)
	node.Status.Allocatable = corev1.ResourceList{"pods": *quantity("100"), "cpu": *quantity("100")}
	node.Status.Capacity = node.Status.Allocatable
	_, err = client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	must(t, err)
	m.createPod(t, client, "first")
}

// createPod creates a pod that is allowed on a node without a kubelet.
func (m *machine) createPod(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "main", Image: "none"}}, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
	}}
	_, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
}

// awaitScheduled waits until a pod has a node.
func (m *machine) awaitScheduled(t *testing.T, client kubernetes.Interface, name, scheduler string) {
	t.Helper()
	m.await(t, name+" has a node", func() bool {
		pod, err := client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil && !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) {
			t.Fatal(err)
		}
		return err == nil && pod.Spec.NodeName != "" && pod.Spec.SchedulerName == scheduler
	})
}

// entry is a key of a store with everything that a copy has to keep.
type entry struct {
	value                    string
	created, modified, count int64
	hasLease                 bool
}

// storeClient returns a client of the store of a machine.
func (m *machine) storeClient(t *testing.T) *clientv3.Client {
	t.Helper()
	pki := m.path("etc/kubernetes/pki")
	config, err := transport.TLSInfo{
		TrustedCAFile: pki + "/etcd/ca.crt", CertFile: pki + "/apiserver-etcd-client.crt", KeyFile: pki + "/apiserver-etcd-client.key",
	}.ClientConfig()
	must(t, err)
	return m.dial(t, config)
}

func (m *machine) dial(t *testing.T, config *tls.Config) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + m.ip + ":2379"}, DialTimeout: 30 * time.Second, TLS: config})
	must(t, err)
	return client
}

// store returns all keys of the store of a machine.
func (m *machine) store(t *testing.T) map[string]entry {
	t.Helper()
	client := m.storeClient(t)
	defer client.Close()
	response, err := client.Get(t.Context(), "/", clientv3.WithPrefix())
	must(t, err)
	all := map[string]entry{}
	for _, kv := range response.Kvs {
		all[string(kv.Key)] = entry{string(kv.Value), kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease != 0}
	}
	return all
}

// volatile are keys that a control plane changes when its programs start, or from time to time.
var volatile = []string{
	"/registry/leases/kube-system/", "/registry/masterleases/", "/registry/peerserverleases/", "/registry/events/", "/registry/endpointslices/default/kubernetes",
	"/registry/services/endpoints/default/kubernetes", "/registry/apiregistration.k8s.io/", "/registry/ranges/", "/registry/health",
	"/registry/flowschemas/", "/registry/prioritylevelconfigurations/", "/registry/configmaps/kube-system/", "compact_rev_key",
}

// compare checks that all objects are as they were: their values and revisions.
func compare(t *testing.T, step string, before, after map[string]entry) {
	t.Helper()
	compared := 0
	for key, old := range before {
		isVolatile := false
		for _, prefix := range volatile {
			isVolatile = isVolatile || strings.HasPrefix(key, prefix)
		}
		// The events of the test are written once.
		if isVolatile && !strings.HasPrefix(key, "/registry/events/default/object-") {
			continue
		}
		compared++
		if now, found := after[key]; !found {
			t.Errorf("%s: %s is lost", step, key)
		} else if now != old {
			t.Errorf("%s: %s changed: created at %d, %d, modified at %d, %d, version %d, %d, with a lease %v, %v", step, key,
				old.created, now.created, old.modified, now.modified, old.count, now.count, old.hasLease, now.hasLease)
		}
	}
	if least := configMaps + 2*configMaps/10 + 2; compared < least {
		t.Errorf("%s: %d objects were compared, want at least %d of %d", step, compared, least, len(before))
	}
	t.Logf("%s: %d of %d objects compared", step, compared, len(before))
}

// memberSections are the sections of the guide about three members, which TestKubeadmMembers and TestKubeadmMovedMembers
// run.
var memberSections = map[string]bool{
	certificateSection: true, "A new cluster with three members": true, "The first of three members": true, "The second and the third member": true,
}

const certificateSection = "Certificates of members"

// section runs a section of the guide with these variables on the machine.
func (m *machine) section(t *testing.T, heading, variables string) {
	t.Helper()
	sections := commands(t, filepath.Join(kubeadmDir, "README.md"))
	if sections[heading] == "" {
		t.Fatalf("the guide has no commands for %q", heading)
	}
	m.run(t, kubeadmDir, variables+"\n"+sections[""]+sections[heading])
}

// TestKubeadmMembers starts a new cluster with three members of mem_etcd. One loses its data and joins again.
func TestKubeadmMembers(t *testing.T) {
	bin := inKubeadm(t)
	if bin == "" {
		return
	}
	var machines []*machine
	var initial, endpoints []string
	for i := 1; i <= 3; i++ {
		m := newMachine(t, bin, i)
		machines = append(machines, m)
		initial = append(initial, fmt.Sprintf("%s=https://%s:2380", m.name, m.ip))
		endpoints = append(endpoints, "https://"+m.ip+":2379")
	}
	for i, m := range machines {
		if i > 0 {
			copyCAs(t, machines[0], m)
		}
		m.section(t, certificateSection, "")
		m.section(t, "A new cluster with three members", "INITIAL_CLUSTER="+strings.Join(initial, ","))
		m.sync(t)
	}
	first := machines[0]
	initialize(t, first, endpoints)
	client := first.client(t)
	first.awaitServing(t, client)
	first.createObjects(t, client)
	first.awaitScheduled(t, client, "first", "default-scheduler")

	lost := machines[2]
	before := first.store(t)
	must(t, os.Rename(lost.path("etc/kubernetes/manifests/etcd.yaml"), lost.path("etcd.yaml")))
	lost.sync(t)
	must(t, os.RemoveAll(lost.path("var/lib/mem_etcd")))
	first.createPod(t, client, "meanwhile")
	must(t, os.Rename(lost.path("etcd.yaml"), lost.path("etc/kubernetes/manifests/etcd.yaml")))
	lost.awaitObject(t, "/registry/pods/default/meanwhile")
	compare(t, "a lost member", before, lost.store(t))
}

// awaitObject waits until the member of the machine serves and has a key, which was written while it was away.
func (m *machine) awaitObject(t *testing.T, key string) {
	t.Helper()
	m.await(t, "the member has "+key, func() bool {
		if !m.listens("2379") {
			return false
		}
		_, found := m.store(t)[key]
		return found
	})
}

// TestKubeadmMovedMembers moves a cluster that runs with etcd to three members of mem_etcd, and compares all objects.
func TestKubeadmMovedMembers(t *testing.T) {
	bin := inKubeadm(t)
	if bin == "" {
		return
	}
	first := newMachine(t, bin, 1)
	initialize(t, first, nil)
	client := first.client(t)
	first.awaitServing(t, client)
	first.createObjects(t, client)
	first.awaitScheduled(t, client, "first", "default-scheduler")
	before := first.store(t)
	for _, heading := range []string{"From etcd to mem_etcd", certificateSection, "The first of three members"} {
		first.section(t, heading, "")
		first.awaitServing(t, client)
		compare(t, heading, before, first.store(t))
	}
	initial := first.name + "=https://" + first.ip + ":2380"
	for i := 2; i <= 3; i++ {
		m := newMachine(t, bin, i)
		copyCAs(t, first, m)
		m.section(t, certificateSection, "")
		initial += fmt.Sprintf(",%s=https://%s:2380", m.name, m.ip)
		m.section(t, "The second and the third member", "FIRST_IP="+first.ip+" INITIAL_CLUSTER="+initial)
		pod := fmt.Sprintf("with-member-%d", i)
		first.createPod(t, client, pod)
		m.awaitObject(t, "/registry/pods/default/"+pod)
		compare(t, m.name, before, m.store(t))
	}
}

// copyCAs copies the CAs of one machine to another, as an operator does before kubeadm join.
func copyCAs(t *testing.T, from, to *machine) {
	t.Helper()
	must(t, os.MkdirAll(to.path("etc/kubernetes/pki/etcd"), 0o755))
	for _, file := range []string{"etcd/ca.crt", "etcd/ca.key"} {
		text, err := os.ReadFile(from.path("etc/kubernetes/pki", file))
		must(t, err)
		must(t, os.WriteFile(to.path("etc/kubernetes/pki", file), text, 0o600))
	}
}
