package controllermanager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	controllerhealthz "k8s.io/controller-manager/pkg/healthz"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	serviceaccountcontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// errShutdownTimeout means that controllers were still running when --controller-shutdown-timeout had passed.
var errShutdownTimeout = errors.New("some controllers did not stop within --controller-shutdown-timeout")

// lead builds the controllers and runs them until ctx ends. It returns nil when all have stopped. stop ends the
// informers that the controllers need in addition to those of the standby.
func (m *manager) lead(ctx context.Context, stop <-chan struct{}) error {
	if ctx.Err() != nil {
		return nil
	}
	logger, begun := klog.FromContext(ctx), time.Now()
	controllers, err := m.buildControllers(ctx)
	if err != nil {
		return err
	}
	m.context.ObjectOrMetadataInformerFactory.Start(stop)
	if late := m.informers.notSynced(); len(late) > 0 {
		logger.Info("Informers were not synced when the controllers were built", "types", late)
	}
	m.gate.Open()
	close(m.context.InformersStarted)
	takeoverSeconds.Set(time.Since(begun).Seconds())
	logger.Info("Starting the controllers", "controllers", len(controllers), "built", time.Since(begun))
	if !app.RunControllers(ctx, m.context, controllers, app.ControllerStartJitter, m.config.ControllerShutdownTimeout) {
		return errShutdownTimeout
	}
	return nil
}

// buildControllers builds all controllers. The one for tokens is the first, as in upstream's program.
func (m *manager) buildControllers(ctx context.Context) ([]app.Controller, error) {
	descriptors := app.NewControllerDescriptors()
	// Upstream's constructor of this controller needs a client that is private to its package.
	delete(descriptors, names.ServiceAccountTokenController)
	tokens, err := m.newTokensController(ctx)
	if err != nil {
		return nil, fmt.Errorf("building the controller %s: %w", names.ServiceAccountTokenController, err)
	}
	if tokens != nil {
		m.pages.health.AddHealthChecker(controllerhealthz.NamedPingChecker(tokens.Name()))
	}
	others, err := app.BuildControllers(ctx, m.context, descriptors, m.pages.mux, m.pages.health)
	if err != nil {
		return nil, fmt.Errorf("building the controllers: %w", err)
	}
	if tokens == nil {
		return others, nil
	}
	return append([]app.Controller{tokens}, others...), nil
}

// tokensController implements app.Controller.
type tokensController struct {
	*serviceaccountcontroller.TokensController
	workers int
}

func (c tokensController) Name() string            { return names.ServiceAccountTokenController }
func (c tokensController) Run(ctx context.Context) { c.TokensController.Run(ctx, c.workers) }

// newTokensController returns the controller that fills Secrets with tokens of service accounts; nil if there is no
// key that signs them.
func (m *manager) newTokensController(ctx context.Context) (app.Controller, error) {
	logger := klog.LoggerWithName(klog.FromContext(ctx), names.ServiceAccountTokenController)
	settings := m.config.ComponentConfig.SAController
	if settings.ServiceAccountKeyFile == "" {
		logger.Info("Controller is disabled because there is no private key", "controller", names.ServiceAccountTokenController)
		return nil, nil
	}
	key, err := keyutil.PrivateKeyFromFile(settings.ServiceAccountKeyFile)
	if err != nil {
		return nil, fmt.Errorf("--service-account-private-key-file: %w", err)
	}
	generator, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return nil, fmt.Errorf("--service-account-private-key-file: %w", err)
	}
	ca, err := rootCA(m.config)
	if err != nil {
		return nil, err
	}
	client, err := m.clients.root.Client("tokens-controller")
	if err != nil {
		return nil, err
	}
	core := m.context.InformerFactory.Core().V1()
	controller, err := serviceaccountcontroller.NewTokensController(logger, core.ServiceAccounts(), core.Secrets(), client,
		serviceaccountcontroller.TokensControllerOptions{TokenGenerator: generator, RootCA: ca})
	return tokensController{controller, int(settings.ConcurrentSATokenSyncs)}, err
}

// rootCA returns the certificate authority that is added to tokens: --root-ca-file, or that of the kubeconfig.
func rootCA(c *config.CompletedConfig) ([]byte, error) {
	file := c.ComponentConfig.SAController.RootCAFile
	if file == "" {
		return c.Kubeconfig.CAData, nil
	}
	content, err := os.ReadFile(file)
	if err == nil {
		_, err = certutil.ParseCertsPEM(content)
	}
	if err != nil {
		return nil, fmt.Errorf("--root-ca-file %s: %w", file, err)
	}
	return content, nil
}
