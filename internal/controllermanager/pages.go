package controllermanager

import (
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/statusz"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/leaderelection"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/configz"
	"k8s.io/component-base/metrics/prometheus/slis"
	zpagesfeatures "k8s.io/component-base/zpages/features"
	genericapp "k8s.io/controller-manager/app"
	controllerhealthz "k8s.io/controller-manager/pkg/healthz"
	configv1alpha1 "k8s.io/kube-controller-manager/config/v1alpha1"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
	configconversion "k8s.io/kubernetes/pkg/controller/apis/config/v1alpha1"
)

// electionTolerance is the time for which /healthz tolerates an expired lease of this process, as upstream's does.
const electionTolerance = 20 * time.Second

// pages are the HTTPS pages of the process. Controllers add health checks and debug pages when they are built.
type pages struct {
	health   *controllerhealthz.MutableHealthzHandler
	mux      *mux.PathRecorderMux // nil if nothing is served
	election *leaderelection.HealthzAdaptor
}

// newPages creates the pages and registers /configz.
func newPages(c *config.CompletedConfig) (*pages, error) {
	if err := registerConfig(c); err != nil {
		return nil, err
	}
	p := &pages{}
	var checks []healthz.HealthChecker
	if c.ComponentConfig.Generic.LeaderElection.LeaderElect {
		p.election = leaderelection.NewLeaderHealthzAdaptor(electionTolerance)
		checks = append(checks, p.election)
	}
	p.health = controllerhealthz.NewMutableHealthzHandler(checks...)
	return p, nil
}

// serve serves the pages until stop is closed, unless the serving port is 0.
func (p *pages) serve(c *config.CompletedConfig, stop <-chan struct{}) error {
	if c.SecureServing == nil {
		return nil
	}
	p.mux = genericapp.NewBaseHandler(&c.ComponentConfig.Generic.Debugging, p.health)
	slis.SLIMetricsWithReset{}.Install(p.mux)
	if utilfeature.DefaultFeatureGate.Enabled(zpagesfeatures.ComponentFlagz) && c.Flagz != nil {
		flagz.Install(p.mux, componentName, c.Flagz)
	}
	if utilfeature.DefaultFeatureGate.Enabled(zpagesfeatures.ComponentStatusz) {
		version := c.ComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
		statusz.Install(p.mux, componentName, statusz.NewRegistry(version, statusz.WithListedPaths(p.mux.ListedPaths())))
	}
	handler := genericapp.BuildHandlerChain(p.mux, &c.Authorization, &c.Authentication)
	_, _, err := c.SecureServing.Serve(handler, 0, stop)
	return err
}

// registerConfig registers the configuration at /configz.
func registerConfig(c *config.CompletedConfig) error {
	external := &configv1alpha1.KubeControllerManagerConfiguration{}
	err := configconversion.Convert_config_KubeControllerManagerConfiguration_To_v1alpha1_KubeControllerManagerConfiguration(&c.ComponentConfig, external, nil)
	if err != nil {
		return fmt.Errorf("converting the configuration for /configz: %w", err)
	}
	external.SetGroupVersionKind(configv1alpha1.SchemeGroupVersion.WithKind("KubeControllerManagerConfiguration"))
	page, err := configz.New(app.ConfigzName)
	if err != nil {
		return fmt.Errorf("registering /configz: %w", err)
	}
	return page.Set(external)
}
