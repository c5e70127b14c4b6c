package component

import (
	"net"
	"os"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

func TestKubeconfigsHaveMode0600(t *testing.T) {
	t.Setenv("K1M_HOME", t.TempDir())
	dir, err := clusterdir.NewDir("test")
	if err == nil {
		err = dir.Create()
	}
	if err != nil {
		t.Fatal(err)
	}
	authority, err := pki.Ensure(dir.PKI(), "test", ServiceCIDR(), net.ParseIP(clusterdir.Loopback))
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteKubeconfigs(clusterdir.NewConfig("test", clusterdir.DefaultSettings()), dir, authority); err != nil {
		t.Fatal(err)
	}
	for _, user := range []pki.User{pki.ControllerManager, pki.Scheduler, pki.Kwok, pki.NodeSim, pki.Admin, pki.SuperAdmin} {
		if info, err := os.Stat(dir.Kubeconfig(user.File)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("Stat() of the kubeconfig %s = %v, %v, want mode 0600", user.File, info, err)
		}
	}
}
