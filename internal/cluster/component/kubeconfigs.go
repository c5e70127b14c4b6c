package component

import (
	"fmt"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

// WriteKubeconfigs writes the kubeconfig of every user. The components are spread over the API servers;
// administrators use the first API server.
func WriteKubeconfigs(config clusterdir.Config, dir clusterdir.Dir, authority *pki.Authority) error {
	servers := APIServerURLs(config)
	for i, user := range []pki.User{pki.ControllerManager, pki.Scheduler, pki.Kwok, pki.Admin, pki.SuperAdmin} {
		server := servers[i%len(servers)]
		if user.File == pki.Admin.File || user.File == pki.SuperAdmin.File {
			server = servers[0]
		}
		content, err := pki.Kubeconfig(config.Name, server, authority, user)
		if err != nil {
			return err
		}
		if err := clusterdir.WriteFileAtomic(dir.Kubeconfig(user.File), content, 0o600); err != nil {
			return fmt.Errorf("writing kubeconfig: %w", err)
		}
	}
	return nil
}
