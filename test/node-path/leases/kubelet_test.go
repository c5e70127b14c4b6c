package leases

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"math/big"
	"net/http"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	leasesPath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	protobuf   = "application/vnd.kubernetes.protobuf"
	// requestTimeout is longer than that of a kubelet, for the time in which the store is down.
	requestTimeout = time.Minute
)

// kubelet sends what a kubelet sends for its Lease, with the certificate of a user.
type kubelet struct {
	name   string
	client *http.Client
	agent  string
}

// answer is the answer to a request.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// newKubelet returns the kubelet of a node.
func (c *cluster) newKubelet(t *testing.T, name string) *kubelet {
	t.Helper()
	return &kubelet{name: name, client: c.httpClient(t, true, "system:node:"+name, "system:nodes"), agent: "kubelet/v1.37.1 (linux/amd64) kubernetes/abc"}
}

// httpClient returns a client with the certificate of a user that the cluster's CA has signed.
func (c *cluster) httpClient(t *testing.T, http2 bool, user string, groups ...string) *http.Client {
	t.Helper()
	transport := &http.Transport{
		// The servers' certificates are not what is tested.
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{c.ClientCertificate(t, user, groups...)}},
		ForceAttemptHTTP2: http2,
	}
	if !http2 {
		transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: requestTimeout}
}

// try sends a request with a protobuf body.
func (k *kubelet) try(method, url string, body []byte, fields ...string) (answer, error) {
	request, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Accept", protobuf+",application/json")
	request.Header.Set("Content-Type", protobuf)
	request.Header.Set("User-Agent", k.agent)
	for i := 0; i+1 < len(fields); i += 2 {
		request.Header.Set(fields[i], fields[i+1])
	}
	response, err := k.client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, content}, err
}

// put updates the Lease with a name.
func (k *kubelet) put(t *testing.T, address, name string, lease *coordinationv1.Lease, fields ...string) answer {
	t.Helper()
	result, err := k.try(http.MethodPut, "https://"+address+leasesPath+"/"+name+"?timeout=10s", encode(t, lease), fields...)
	must(t, err)
	return result
}

// create creates the kubelet's Lease.
func (k *kubelet) create(t *testing.T, address string) *coordinationv1.Lease {
	t.Helper()
	duration, now := int32(40), metav1.NowMicro()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: k.name, Namespace: "kube-node-lease"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &k.name, LeaseDurationSeconds: &duration, RenewTime: &now},
	}
	result, err := k.try(http.MethodPost, "https://"+address+leasesPath+"?timeout=10s", encode(t, lease))
	must(t, err)
	return result.lease(t, http.StatusCreated)
}

// renew sends the Lease with a later time, and returns the answer, which must be 200.
func (k *kubelet) renew(t *testing.T, address string, lease *coordinationv1.Lease) *coordinationv1.Lease {
	t.Helper()
	return k.put(t, address, lease.Name, later(lease)).lease(t, http.StatusOK)
}

// later returns a copy with a later renewTime, as precise as a Lease in protobuf has it.
func later(lease *coordinationv1.Lease) *coordinationv1.Lease {
	renewed := lease.DeepCopy()
	now := metav1.NewMicroTime(time.Now().Truncate(time.Microsecond))
	renewed.Spec.RenewTime = &now
	return renewed
}

// lease decodes an answer with a status.
func (a answer) lease(t *testing.T, status int) *coordinationv1.Lease {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d: %q", a.status, status, a.body)
	}
	return decode(t, a.body)
}

func serializer(t *testing.T) runtime.Serializer {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), protobuf)
	if !ok {
		t.Fatal("there is no serializer for protobuf")
	}
	return info.Serializer
}

// encode returns a Lease as Kubernetes encodes it.
func encode(t *testing.T, lease *coordinationv1.Lease) []byte {
	t.Helper()
	encoder := scheme.Codecs.EncoderForVersion(serializer(t), coordinationv1.SchemeGroupVersion)
	bytes, err := runtime.Encode(encoder, lease)
	must(t, err)
	return bytes
}

func decode(t *testing.T, bytes []byte) *coordinationv1.Lease {
	t.Helper()
	object, err := runtime.Decode(serializer(t), bytes)
	must(t, err)
	lease, ok := object.(*coordinationv1.Lease)
	if !ok {
		t.Fatalf("%T is not a Lease", object)
	}
	return lease
}

// stored returns what is in the store for a Lease at its version.
func (c *cluster) stored(t *testing.T, name, version string) []byte {
	t.Helper()
	revision, ok := new(big.Int).SetString(version, 10)
	if !ok {
		t.Fatalf("%q is not a version", version)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	result, err := c.store.Get(ctx, "/registry/leases/kube-node-lease/"+name, clientv3.WithRev(revision.Int64()))
	must(t, err)
	if len(result.Kvs) != 1 || result.Kvs[0].ModRevision != revision.Int64() {
		t.Fatalf("the store has no %s that was written at %s: %v", name, version, result.Kvs)
	}
	return result.Kvs[0].Value
}
