package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	admission "k8s.io/api/admission/v1"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

func TestOptionsAreValidatedAndSetBaseURL(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"":                                        func(*Options) {},
		"--intake \"x\": no such mode":            func(o *Options) { o.Mode = "x" },
		"use --intake webhook":                    func(o *Options) { o.Mode = modeBoth },
		"--intake-port 0: choose 1 to 65535":      func(o *Options) { o.Port = 0 },
		"--intake-bind-address \"localhost\":":    func(o *Options) { o.BindAddress = "localhost" },
		"--intake-name \"A_b\":":                  func(o *Options) { o.Name = "A_b" },
		"--intake-url \"http://a:1\":":            func(o *Options) { o.URL = "http://a:1" },
		"--intake-url \"https://a:1/path\":":      func(o *Options) { o.URL = "https://a:1/path" },
		"--intake-url \"https://user@host:1\":":   func(o *Options) { o.URL = "https://user@host:1" },
		"set both of --intake-client-ca-file and": func(o *Options) { o.ClientNames = []string{"apiserver"} },
		"and --intake-client-names, or none":      func(o *Options) { o.ClientCAFile = "ca.crt" },
	} {
		o := DefaultOptions()
		o.Mode = ModeWebhook
		change(&o)
		err := o.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("Validate() of %+v = %v, want one line with %q", o, err, want)
		}
	}
	for url, o := range map[string]Options{
		"https://127.0.0.1:7": {BindAddress: "127.0.0.1", Port: 7},
		"https://[::1]:7":     {BindAddress: "::1", Port: 7},
		"https://a.b:8":       {BindAddress: "0.0.0.0", Port: 7, URL: "https://a.b:8"},
	} {
		if got, err := o.baseURL(); err != nil || got.String() != url {
			t.Errorf("baseURL() of %+v = %v, %v, want %s", o, got, err, url)
		}
	}
}

// serverFixture is a running Server with a fake API server.
type serverFixture struct {
	*Server
	t      *testing.T
	client *fake.Clientset
	pods   chan *v1.Pod
}

func newServerFixture(t *testing.T, client *fake.Clientset, changes ...func(*Options)) *serverFixture {
	t.Helper()
	s := &serverFixture{t: t, client: client, pods: make(chan *v1.Pod, 10)}
	o := DefaultOptions()
	o.Mode, o.BindAddress, o.Port, o.Name = ModeWebhook, host, testcluster.FreePort(t), name
	for _, change := range changes {
		change(&o)
	}
	var err error
	s.Server, err = New(t.Context(), o, []string{"default-scheduler", `odd "name"`}, client, func(pod *v1.Pod) { s.pods <- pod }, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	leads := make(chan struct{})
	close(leads)
	ctx, cancel := context.WithCancel(context.Background())
	go s.Run(ctx, leads)
	t.Cleanup(func() {
		s.Stop()
		cancel()
	})
	return s
}

func configurationOf(client kubernetes.Interface) (*admissionregistration.ValidatingWebhookConfiguration, error) {
	return client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(context.Background(), name, metav1.GetOptions{})
}

// call sends a review as an API server does: it uses only the configuration.
func (s *serverFixture) call() error { return s.callWith() }

// callWith sends a review with client certificates.
func (s *serverFixture) callWith(certificates ...tls.Certificate) error {
	configuration, err := configurationOf(s.client)
	if err != nil {
		return err
	}
	client := configuration.Webhooks[0].ClientConfig
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(client.CABundle)
	web := http.Client{Timeout: schedtest.Patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certificates}, ForceAttemptHTTP2: true}}
	defer web.CloseIdleConnections()
	response, err := web.Post(*client.URL, "application/json", strings.NewReader(createReview(s.t, nil)))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		message, err := io.ReadAll(response.Body)
		return errors.Join(fmt.Errorf("%s: %s", response.Status, message), err)
	}
	var got admission.AdmissionReview
	if err := json.NewDecoder(response.Body).Decode(&got); err != nil {
		return err
	}
	if response.ProtoMajor != 2 || got.Response == nil || !got.Response.Allowed {
		return fmt.Errorf("response by %s is %+v, want an allowed request by HTTP/2", response.Proto, got)
	}
	return nil
}

// eventually waits until check returns no error.
func (s *serverFixture) eventually(condition string, check func() error) {
	s.t.Helper()
	const patience = schedtest.Patience
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("timed out after %v waiting until %s: %v", patience, condition, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestRegisteredWebhookIsCalled(t *testing.T) {
	s := newServerFixture(t, fake.NewClientset())
	s.eventually("the webhook is called", s.call)
	if pod := <-s.pods; pod.Name != "pod" {
		t.Errorf("delivered pod %s, want pod", pod.Name)
	}
	configuration, err := configurationOf(s.client)
	if err != nil {
		t.Fatal(err)
	}
	hook := configuration.Webhooks[0]
	if *hook.FailurePolicy != admissionregistration.Ignore || *hook.SideEffects != admissionregistration.SideEffectClassNone || *hook.TimeoutSeconds != 1 {
		t.Errorf("webhook = %+v, want failurePolicy Ignore, sideEffects None and timeoutSeconds 1", hook)
	}
	want := `object.spec.schedulerName in ["default-scheduler", "odd \"name\""]`
	if got := hook.MatchConditions[0].Expression; got != want {
		t.Errorf("match condition = %s, want %s", got, want)
	}
}

// TestConfigurationIsRestored checks that a deleted or changed configuration is restored.
func TestConfigurationIsRestored(t *testing.T) {
	s := newServerFixture(t, fake.NewClientset())
	s.eventually("the webhook is called", s.call)
	configurations := s.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if err := configurations.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the webhook is called after the configuration was deleted", s.call)
	for name, change := range map[string]func(*admissionregistration.ValidatingWebhookConfiguration){
		"failure policy": func(c *admissionregistration.ValidatingWebhookConfiguration) {
			c.Webhooks[0].FailurePolicy = new(admissionregistration.Fail)
		},
		"URL": func(c *admissionregistration.ValidatingWebhookConfiguration) {
			c.Webhooks[0].ClientConfig.URL = new("https://127.0.0.1:1/")
		},
		"CA bundle": func(c *admissionregistration.ValidatingWebhookConfiguration) {
			c.Webhooks[0].ClientConfig.CABundle = nil
		},
		"list of webhooks": func(c *admissionregistration.ValidatingWebhookConfiguration) { c.Webhooks = nil },
	} {
		before, err := configurationOf(s.client)
		if err != nil {
			t.Fatal(err)
		}
		changed := before.DeepCopy()
		change(changed)
		if _, err := configurations.Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.eventually(fmt.Sprintf("the %s is restored", name), func() error {
			after, err := configurationOf(s.client)
			if err == nil && (len(after.Webhooks) != 1 || fmt.Sprint(after.Webhooks) == fmt.Sprint(changed.Webhooks)) {
				err = fmt.Errorf("the webhooks are %+v", after.Webhooks)
			}
			if err != nil {
				return err
			}
			return s.call()
		})
	}
}

// TestForeignConfigurationIsNotOverwritten checks that a configuration of the same name that this
// program did not create is left alone. An earlier version of this program set no label.
func TestForeignConfigurationIsNotOverwritten(t *testing.T) {
	for hook, ours := range map[string]bool{"policy.example.com": false, webhookName: true} {
		client := fake.NewClientset(&admissionregistration.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionregistration.ValidatingWebhook{{Name: hook}},
		})
		err := newRegistrar(client, name, "https://127.0.0.1:1", nil).ensure(t.Context(), nil)
		after, getErr := configurationOf(client)
		if getErr != nil {
			t.Fatal(getErr)
		}
		written := after.Webhooks[0].ClientConfig.URL != nil
		if (err == nil) != ours || written != ours || err != nil && !errors.Is(err, errNotOurs) {
			t.Errorf("ensure() over a configuration of %s = %v, configuration %v, want it written: %v", hook, err, after, ours)
		}
	}
}

func TestStopDeletesConfigurationAndClosesPort(t *testing.T) {
	s := newServerFixture(t, fake.NewClientset())
	s.eventually("the webhook is called", s.call)
	s.Stop()
	if _, err := configurationOf(s.client); !apierrors.IsNotFound(err) {
		t.Errorf("getting the configuration after Stop() = %v, want not found", err)
	}
	if conn, err := net.Dial("tcp", s.options.address()); err == nil {
		conn.Close()
		t.Errorf("connecting to %s after Stop() succeeded, want an error", s.options.address())
	}
}

// TestFormerLeaderKeepsConfigurationOfSuccessor checks that a former leader that withdraws late
// does not delete the configuration of its successor.
func TestFormerLeaderKeepsConfigurationOfSuccessor(t *testing.T) {
	client := fake.NewClientset()
	former := newServerFixture(t, client)
	former.eventually("the former leader is called", former.call)
	// The former leader deletes its configuration now, and withdraws once more below.
	close(former.stop)
	former.stopOnce.Do(func() {})
	former.eventually("the configuration of the former leader is deleted", func() error {
		_, err := configurationOf(client)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("getting it returned error %v", err)
	})
	successor := newServerFixture(t, client)
	successor.eventually("the successor is called", successor.call)
	if err := former.registrar.withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := successor.call(); err != nil {
		t.Errorf("calling the successor after the former leader has withdrawn: %v", err)
	}
}

// TestRejectedConfigurationIsRetried checks that the configuration is written again after
// the API server has rejected it.
func TestRejectedConfigurationIsRetried(t *testing.T) {
	client, refusals := fake.NewClientset(), 1
	client.PrependReactor("create", "validatingwebhookconfigurations", func(clienttesting.Action) (bool, runtime.Object, error) {
		if refusals == 0 {
			return false, nil, nil
		}
		refusals--
		return true, nil, errors.New("refused")
	})
	s := newServerFixture(t, client)
	s.eventually("the webhook is called", s.call)
}

func TestPortInUseIsAnError(t *testing.T) {
	listener, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	o := DefaultOptions()
	o.BindAddress, o.Port = host, listener.Addr().(*net.TCPAddr).Port
	_, err = New(t.Context(), o, nil, fake.NewClientset(), nil, nil)
	if err == nil || !strings.Contains(err.Error(), "choose another") {
		t.Errorf("New() with a port in use = %v, want an error with %q", err, "choose another")
	}
}
