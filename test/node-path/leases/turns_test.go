package leases

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// maxRunning is how many renewals the gateway sends to an API server at a time.
	maxRunning = 256
	// turnNodes is the number of nodes, of which some wait.
	turnNodes = maxRunning + 40
)

// testTurns makes the gateway forward all renewals to an API server that does not answer them. Some wait, and are served when
// the gateway may serve again.
func testTurns(t *testing.T, c *cluster) {
	proxy := testcluster.NewProxy(t, c.Servers[0])
	one := *c
	one.Servers = []string{proxy.Address}
	g := one.startGateway(t, "on", c.storeURL, "/registry")
	// Not the connections over which the gateway itself asks.
	proxy.Mark()
	kubelets, leases := make([]*kubelet, turnNodes), make([]*coordinationv1.Lease, turnNodes)
	for i := range kubelets {
		kubelets[i] = c.newKubelet(t, fmt.Sprintf("turn-%d", i))
		leases[i] = kubelets[i].create(t, g.address)
	}
	leases[0] = turnOn(t, g, kubelets[0], leases[0])
	// Each is known after its first renewal, and has a connection to the API server.
	renewAll(t, g, kubelets, leases)

	configurations := c.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := configurations.Create(context.Background(), webhook("turns"), metav1.CreateOptions{})
	must(t, err)
	testcluster.Eventually(t, startTimeout, "the webhook refuses", func() bool { return g.metric("kube_gateway_node_path_permitted") == 0 })
	proxy.Held.Store(true)
	var all sync.WaitGroup
	all.Go(func() { renewAll(t, g, kubelets, leases) })
	waiting := func() int { return g.metric("kube_gateway_node_path_lease_renewals_waiting") }
	testcluster.Eventually(t, startTimeout, "renewals wait", func() bool {
		return waiting() == turnNodes-maxRunning && g.metric("kube_gateway_node_path_lease_renewals_running{") == maxRunning
	})
	served := g.served()
	must(t, configurations.Delete(context.Background(), "turns", metav1.DeleteOptions{}))
	testcluster.Eventually(t, startTimeout, "those that wait are served", func() bool { return waiting() == 0 })
	if count := g.served() - served; count != turnNodes-maxRunning {
		t.Errorf("%d renewals were served, want %d", count, turnNodes-maxRunning)
	}
	proxy.Held.Store(false)
	all.Wait()
	if running := g.metric("kube_gateway_node_path_lease_renewals_running{"); running != 0 {
		t.Errorf("%d renewals are at the API server in the end, want none", running)
	}
}

// renewAll renews all Leases at the same time.
func renewAll(t *testing.T, g *gateway, kubelets []*kubelet, leases []*coordinationv1.Lease) {
	var all sync.WaitGroup
	for i, k := range kubelets {
		all.Go(func() {
			result, err := k.try(http.MethodPut, "https://"+g.address+leasesPath+"/"+k.name+"?timeout=10s", encode(t, later(leases[i])))
			if err != nil || result.status != http.StatusOK {
				t.Errorf("%s: status %d, error %v, want 200: %q", k.name, result.status, err, result.body)
				return
			}
			leases[i] = decode(t, result.body)
		})
	}
	all.Wait()
}

// webhook returns a configuration with a webhook that sees renewals of Leases, and whose failures do not matter.
func webhook(name string) *admissionv1.ValidatingWebhookConfiguration {
	url, ignore, none, timeout := "https://127.0.0.1:1/", admissionv1.Ignore, admissionv1.SideEffectClassNone, int32(1)
	return &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "w.example.com", ClientConfig: admissionv1.WebhookClientConfig{URL: &url}, FailurePolicy: &ignore, SideEffects: &none,
			TimeoutSeconds: &timeout, AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{"coordination.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"leases"}},
			}},
		}},
	}
}
