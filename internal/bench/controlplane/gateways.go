package controlplane

import (
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// servers are the options of experiments that may run with several API servers and with a gateway.
type servers struct {
	APIServers int
	Gateway    bool
}

// AddFlags binds the options to flags.
func (s *servers) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&s.APIServers, "apiservers", s.APIServers, "number of kube-apiserver processes")
	fs.BoolVar(&s.Gateway, "gateway", s.Gateway,
		"run kube-gateway in front of the API servers. The measured clients connect to it as the administrator, whose lists it limits")
}

// Validate returns the first invalid option as a usage error.
func (s *servers) Validate() error {
	if s.APIServers < 1 || s.APIServers > 16 {
		return usage.Errorf("--apiservers %d: choose 1 to 16", s.APIServers)
	}
	return nil
}

// apply changes the settings of a cluster.
func (s *servers) apply(settings *clusterdir.Settings) {
	settings.APIServers, settings.Gateway = s.APIServers, new(s.Gateway)
}

// clientConfig returns the credentials of the measured clients. Behind a gateway these are not in
// system:masters, because the gateway does not limit the lists of that group.
func (t *storeRun) clientConfig() (*rest.Config, error) {
	if len(t.Config.Settings.GatewayNames()) == 0 {
		return rest.CopyConfig(t.Rest), nil
	}
	return kube.Config(t.Cluster.Dir.Kubeconfig(pki.Admin.File))
}

// throughGateway returns clients that connect to the gateways, if the cluster has any. Otherwise they are
// those of the cluster.
func (t *storeRun) throughGateway() (*bulk.Clients, error) {
	if len(t.Config.Settings.GatewayNames()) == 0 {
		return t.Clients, nil
	}
	config, err := t.clientConfig()
	if err != nil {
		return nil, err
	}
	return bulk.NewClients(config, component.ClientURLs(t.Config), connections)
}

// gatewayCosts appends the CPU time and the peak memory of the gateways to a table, if the cluster has any.
func (t *storeRun) gatewayCosts(table *experiment.Table, what string, m experiment.Measured) {
	if table != nil {
		table.Add(t.store, what, m.Cores(component.RoleGateway), float64(m.Peak[component.RoleGateway])/mebibyte)
	}
}

// gatewayTable returns a table for [storeRun.gatewayCosts], or nil without a gateway.
func (s *servers) gatewayTable(result *experiment.Result) *experiment.Table {
	if !s.Gateway {
		return nil
	}
	return result.Table("kube-gateway", "store", "step", "cores", "peak memory, MiB")
}
