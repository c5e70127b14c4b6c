package component

import (
	"fmt"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/util/atomicfile"
)

// WriteKubeconfigs writes the kubeconfig of every user. The components of the control plane and the simulators
// of nodes are spread over the gateways or, without a gateway, over the API servers; the administrator uses the first
// of these. The super-administrator, which is the user of k1m itself, always uses the first API server:
// its supervisor creates objects before a gateway is ready, and `k1m status` also works without one.
//
// A kubeconfig has one server, so a client uses one gateway. For the others there are kubeconfigs of the
// administrator, one for each server ([ServerNames]).
func WriteKubeconfigs(config clusterdir.Config, dir clusterdir.Dir, authority *pki.Authority) error {
	write := func(file, server string, user pki.User) error {
		content, err := pki.Kubeconfig(config.Name, server, authority, user)
		if err != nil {
			return err
		}
		if err := atomicfile.Write(dir.Kubeconfig(file), content, 0o600); err != nil {
			return fmt.Errorf("writing kubeconfig: %w", err)
		}
		return nil
	}
	urls := ClientURLs(config)
	for i, user := range []pki.User{pki.ControllerManager, pki.Scheduler, pki.Kwok, pki.NodeSim} {
		if err := write(user.File, urls[i%len(urls)], user); err != nil {
			return err
		}
	}
	for _, name := range ServerNames(config) {
		if err := write(AdminFileFor(name), config.Ports.URL(name), pki.Admin); err != nil {
			return err
		}
	}
	if err := write(pki.Admin.File, urls[0], pki.Admin); err != nil {
		return err
	}
	return write(pki.SuperAdmin.File, APIServerURLs(config)[0], pki.SuperAdmin)
}

// ServerNames returns the names of all components that serve the Kubernetes API: the gateways and the API
// servers.
func ServerNames(config clusterdir.Config) []string {
	names := config.Settings.GatewayNames()
	for i := range config.Settings.APIServers {
		names = append(names, clusterdir.APIServerName(i))
	}
	return names
}

// AdminFileFor returns the base name of the administrator's kubeconfig for one of [ServerNames].
func AdminFileFor(server string) string { return pki.Admin.File + "-" + server }
