package pki

import (
	"crypto/x509"
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/cmd/kubeadm/app/constants"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// User is somebody who talks to the API server by client certificate.
type User struct {
	File       string
	CommonName string
	Groups     []string
}

// KwokUser has the rights that internal/kube/bootstrap.yaml gives, no more.
const KwokUser = "k1m:kwok"

// Users of a cluster; names and groups are kubeadm's.
var (
	Admin             = User{"admin", "kubernetes-admin", []string{constants.ClusterAdminsGroupAndClusterRoleBinding}}
	SuperAdmin        = User{"super-admin", "kubernetes-super-admin", []string{"system:masters"}}
	ControllerManager = User{"controller-manager", "system:kube-controller-manager", nil}
	Scheduler         = User{"scheduler", "system:kube-scheduler", nil}
	Kwok              = User{"kwok", KwokUser, nil}
)

// WriteKubeconfig signs a client certificate for the user and writes a
// kubeconfig that holds all it needs to reach server.
func WriteKubeconfig(path, clusterName, server string, authority *Authority, user User) error {
	cert, key, err := pkiutil.NewCertAndKey(authority.Cert, authority.key, leafConfig(user.CommonName, user.Groups, x509.ExtKeyUsageClientAuth))
	if err != nil {
		return fmt.Errorf("client certificate of %s: %w", user.CommonName, err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("client key of %s: %w", user.CommonName, err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[clusterName] = &clientcmdapi.Cluster{
		Server:                   server,
		CertificateAuthorityData: pkiutil.EncodeCertPEM(authority.Cert),
	}
	config.AuthInfos[user.CommonName] = &clientcmdapi.AuthInfo{
		ClientCertificateData: pkiutil.EncodeCertPEM(cert),
		ClientKeyData:         keyPEM,
	}
	config.Contexts[clusterName] = &clientcmdapi.Context{Cluster: clusterName, AuthInfo: user.CommonName}
	config.CurrentContext = clusterName
	content, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", user.CommonName, err)
	}
	if err := clusterdir.WriteFileAtomic(path, content, 0o600); err != nil {
		return fmt.Errorf("writing kubeconfig: %w", err)
	}
	return nil
}
