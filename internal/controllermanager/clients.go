package controllermanager

import (
	"fmt"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/controller-manager/pkg/clientbuilder"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/config"

	"github.com/k8s-1m/k8s-1m/internal/controllermanager/fence"
)

const (
	// Timeouts of client-go's own connections.
	dialTimeout, dialKeepAlive = 30 * time.Second, 30 * time.Second

	// When the controllers are built, the service account of each is read and a token is requested. With the default
	// of --kube-api-qps (20 requests/s) this would take seconds.
	credentialQPS, credentialBurst = 100, 500
)

// clients build the API clients of controllers. All their writes pass the fence.
type clients struct {
	// root has the identity of the process. It also serves the informers.
	root clientbuilder.ControllerClientBuilder
	// controllers has the identity of each controller, if --use-service-account-credentials is set.
	controllers clientbuilder.ControllerClientBuilder
}

// newClients returns the clients of controllers. The lease and the events of the election do not use them.
func newClients(c *config.CompletedConfig, f *fence.Fence) (*clients, error) {
	fenced, err := fencedConfig(c.Kubeconfig, f)
	if err != nil {
		return nil, err
	}
	root := clientbuilder.SimpleControllerClientBuilder{ClientConfig: fenced}
	if !c.ComponentConfig.KubeCloudShared.UseServiceAccountCredentials {
		return &clients{root: root, controllers: root}, nil
	}
	anonymous, err := fencedConfig(rest.AnonymousClientConfig(c.Kubeconfig), f)
	if err != nil {
		return nil, err
	}
	credentials := rest.CopyConfig(fenced)
	credentials.QPS, credentials.Burst = max(credentials.QPS, credentialQPS), max(credentials.Burst, credentialBurst)
	client, err := kubernetes.NewForConfig(rest.AddUserAgent(credentials, componentName))
	if err != nil {
		return nil, fmt.Errorf("creating the client for service accounts: %w", err)
	}
	return &clients{root: root, controllers: clientbuilder.NewDynamicClientBuilder(anonymous, client.CoreV1(), metav1.NamespaceSystem)}, nil
}

// fencedConfig returns the configuration of clients whose requests pass the fence. They share a transport: with a dial
// function, client-go would otherwise open a connection for each client.
func fencedConfig(own *rest.Config, f *fence.Fence) (*rest.Config, error) {
	dialing := rest.CopyConfig(own)
	dial := dialing.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: dialKeepAlive}).DialContext
	}
	dialing.Dial = f.Dial(dial)
	transport, err := rest.TransportFor(dialing)
	if err != nil {
		return nil, fmt.Errorf("creating the transport of the controllers: %w", err)
	}
	host, _, err := rest.DefaultServerUrlFor(own)
	if err != nil {
		return nil, fmt.Errorf("address of the API server: %w", err)
	}
	// The shared transport has the certificates and the credentials.
	return &rest.Config{
		Host: host.String(), APIPath: own.APIPath, ContentConfig: own.ContentConfig, UserAgent: own.UserAgent,
		DisableCompression: own.DisableCompression, QPS: own.QPS, Burst: own.Burst, RateLimiter: own.RateLimiter, Timeout: own.Timeout,
		WarningHandler: own.WarningHandler, WarningHandlerWithContext: own.WarningHandlerWithContext,
		Transport: f.Wrap(transport),
	}, nil
}
