package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// TestIntakeByWebhook checks that the cluster's scheduler receives pods by its webhook, and that it discards
// pods that admission rejects afterwards. Then it kills a second scheduler, which leaves its webhook
// configuration. Pods can still be created, and the next scheduler binds them.
func TestIntakeByWebhook(t *testing.T) {
	const pods = 60
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", "intake") })
	w.succeed(t, "up", "--name", "intake", "--nodes", "10", "--store", storeKind(), "--scheduler", "dist-scheduler", "--scheduler-intake", "webhook")
	client := w.client(t, "intake")
	awaitWebhook(t, client, "dist-scheduler-intake")

	own := newLoad(t, client, corev1.DefaultSchedulerName, 20)
	for i := range pods {
		own.create(t.Context(), fmt.Sprintf("own-%d", i))
	}
	own.awaitAll(t, pods)
	metrics := w.intakeMetrics(t, "intake")
	// On a busy machine, an API server does not wait for each answer.
	if early := metrics[`pods_total{source="webhook"}`]; early < pods/2 {
		t.Errorf("the webhook delivered %v of %d pods: %v", early, pods, metrics)
	}
	forgedReviewIsRejected(t, w, client)
	rejectedPodsReserveNothing(t, w, own)
	own.checkCapacity(t)
	deadWebhookDoesNotBlockPods(t, w, client)
}

// forgedReviewIsRejected sends an admission review as a process that can read the webhook's
// configuration, but has no certificate of an API server.
func forgedReviewIsRejected(t *testing.T, w *workspace, client kubernetes.Interface) {
	t.Helper()
	configuration, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "dist-scheduler-intake", metav1.GetOptions{})
	must(t, err)
	webhook := configuration.Webhooks[0].ClientConfig
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(webhook.CABundle)
	kubelet, err := tls.LoadX509KeyPair(filepath.Join(w.clusterDir("intake"), "pki", "apiserver-kubelet-client.crt"), filepath.Join(w.clusterDir("intake"), "pki", "apiserver-kubelet-client.key"))
	must(t, err)
	before := w.intakeMetrics(t, "intake")[`dropped_pods_total{reason="unauthenticated"}`]
	for _, certificates := range [][]tls.Certificate{nil, {kubelet}} {
		web := http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certificates}}}
		response, err := web.Post(*webhook.URL, "application/json", strings.NewReader("{}"))
		must(t, err)
		response.Body.Close()
		if response.StatusCode != http.StatusUnauthorized {
			t.Errorf("a review of a client with %d certificates that is not an API server: %s, want %d", len(certificates), response.Status, http.StatusUnauthorized)
		}
	}
	if dropped := w.intakeMetrics(t, "intake")[`dropped_pods_total{reason="unauthenticated"}`] - before; dropped != 2 {
		t.Errorf("%v reviews were counted as unauthenticated, want 2", dropped)
	}
}

// rejectedPodsReserveNothing creates a pod that a quota rejects and a pod in a dry run. The scheduler
// receives both by its webhook and must discard them.
func rejectedPodsReserveNothing(t *testing.T, w *workspace, l *load) {
	core := l.client.CoreV1()
	_, err := core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "quota"}}, metav1.CreateOptions{})
	must(t, err)
	_, err = core.ResourceQuotas("quota").Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
	}, metav1.CreateOptions{})
	must(t, err)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "refused-"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "pause"}}},
	}
	eventually(t, patience, "the quota rejects a pod", func() error {
		_, err := core.Pods("quota").Create(t.Context(), pod, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "exceeded quota") {
			return fmt.Errorf("creating a pod returns %v", err)
		}
		return nil
	})
	dry := pod.DeepCopy()
	dry.Namespace = metav1.NamespaceDefault
	_, err = core.Pods(metav1.NamespaceDefault).Create(t.Context(), dry, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	must(t, err)
	eventually(t, patience, "rejected pods are discarded", func() error {
		metrics := w.intakeMetrics(t, "intake")
		expired := metrics[`expired_pods_total{reason="absent"}`] + metrics[`expired_pods_total{reason="timeout"}`]
		if expired < 1 || metrics["early_pods"] > 0 {
			return fmt.Errorf("the intake metrics are %v", metrics)
		}
		return nil
	})
}

// deadWebhookDoesNotBlockPods creates pods while a scheduler with a webhook is suspended, and after it was
// killed. A scheduler without a webhook must bind these pods. Then the next scheduler with the same
// --intake-name must take over the webhook configuration.
func deadWebhookDoesNotBlockPods(t *testing.T, w *workspace, client kubernetes.Interface) {
	const name, noElection = "second-intake", "leaderElection: {leaderElect: false}\n"
	webhook := func() *schedulerProcess {
		return w.startScheduler(t, "intake", noElection, "--intake", "webhook", "--intake-name", name,
			"--intake-bind-address", "127.0.0.1", "--intake-port", strconv.Itoa(testcluster.FreePort(t)))
	}
	second := webhook()
	bundle := awaitWebhook(t, client, name)
	l := newLoad(t, client, "dist-scheduler", 20)
	l.create(t.Context(), "before")
	l.awaitBound(t, "before")

	must(t, second.cmd.Process.Signal(syscall.SIGSTOP))
	whileSuspended := l.fastest(t, "hung", 3)
	must(t, second.cmd.Process.Kill())
	<-second.ended
	afterKill := l.fastest(t, "dead", 20)
	// The API server waits for a second, and not at all if nobody listens. It would wait for ten seconds by default.
	if whileSuspended > 5*time.Second || afterKill > time.Second/2 {
		t.Errorf("creating a pod took at least %v while the scheduler was suspended (limit 5 s), and %v after it was killed (limit 0.5 s)", whileSuspended, afterKill)
	}
	t.Logf("creating a pod took at least %v while the scheduler was suspended, and %v after it was killed", whileSuspended, afterKill)
	if again := awaitWebhook(t, client, name); again != bundle {
		t.Error("the CA of the killed scheduler's webhook configuration has changed")
	}
	watching := w.startScheduler(t, "intake", noElection)
	l.awaitAll(t, 24)
	watching.end(t)

	third := webhook()
	eventually(t, patience, "the next scheduler takes over the webhook with the same CA", func() error {
		l.create(t.Context(), "after")
		if again := awaitWebhook(t, client, name); again != bundle {
			return fmt.Errorf("the CA is %q", again)
		}
		return nil
	})
	l.awaitBound(t, "after")
	third.end(t)
	_, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the scheduler did not remove its webhook configuration when it exited: %v", err)
	}
}

// fastest creates pods one after the other, and returns the shortest time. Other work of the machine delays some of them.
func (l *load) fastest(t *testing.T, prefix string, pods int) time.Duration {
	t.Helper()
	least := time.Duration(math.MaxInt64)
	for i := range pods {
		start := time.Now()
		l.create(t.Context(), fmt.Sprintf("%s-%d", prefix, i))
		least = min(least, time.Since(start))
	}
	return least
}

// awaitWebhook waits until a webhook configuration exists, and returns its CA bundle.
func awaitWebhook(t *testing.T, client kubernetes.Interface, name string) (bundle string) {
	t.Helper()
	eventually(t, patience, "the webhook "+name+" exists", func() error {
		configuration, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			bundle = string(configuration.Webhooks[0].ClientConfig.CABundle)
		}
		return err
	})
	return bundle
}

// awaitAll waits until the given number of pods exist and all are bound.
func (l *load) awaitAll(t *testing.T, pods int) {
	t.Helper()
	eventually(t, patience, "all pods are bound", func() error {
		if bound, all := l.count(t); bound != pods || all != pods {
			return fmt.Errorf("%d of %d pods are bound, want %d", bound, all, pods)
		}
		return nil
	})
}

// intakeMetrics returns the intake metrics of the cluster's scheduler. The names are without prefix.
func (w *workspace) intakeMetrics(t *testing.T, cluster string) map[string]float64 {
	t.Helper()
	return w.metrics(t, cluster, "dist-scheduler", "scheduler_intake_")
}

// metrics returns those metrics of a component whose names have a prefix. The returned names are without
// the prefix.
func (w *workspace) metrics(t *testing.T, cluster, component, prefix string) map[string]float64 {
	t.Helper()
	return w.metricsAt(t, cluster, w.status(t, cluster).component(t, component).Address+"/metrics", prefix)
}

// metricsAt returns those metrics of a page whose names have a prefix, without the prefix.
func (w *workspace) metricsAt(t *testing.T, cluster, url, prefix string) map[string]float64 {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(w.succeed(t, "kubeconfig", "--name", cluster).stdout))
	must(t, err)
	web, err := rest.HTTPClientFor(config)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	must(t, err)
	response, err := web.Do(request)
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	metrics := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		value := strings.LastIndex(line, " ") + 1
		if name, found := strings.CutPrefix(line[:max(value-1, 0)], prefix); found {
			metrics[name], err = strconv.ParseFloat(line[value:], 64)
			must(t, err)
		}
	}
	return metrics
}
