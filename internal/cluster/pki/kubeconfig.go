package pki

import (
	"crypto/x509"
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/cmd/kubeadm/app/constants"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil"
)

// User is a client of the API server that authenticates with a client certificate.
type User struct {
	File       string   // base name of the kubeconfig file, without extension
	CommonName string   // user name
	Groups     []string // groups of the user
}

// KwokUser is the user name of kwok. internal/cluster/kube/bootstrap.yaml grants this user the
// permissions that kwok needs.
const KwokUser = "k1m:kwok"

// NodeSimUser is the user name of node-sim for nodes without a connection of their own. bootstrap.yaml grants
// it what a kubelet may do, for all nodes.
const NodeSimUser = "k1m:node-sim"

// Users of a cluster. The names and groups of all users except Kwok and NodeSim are those of a kubeadm cluster.
var (
	Admin             = User{"admin", "kubernetes-admin", []string{constants.ClusterAdminsGroupAndClusterRoleBinding}}
	SuperAdmin        = User{"super-admin", "kubernetes-super-admin", []string{"system:masters"}}
	ControllerManager = User{"controller-manager", "system:kube-controller-manager", nil}
	Scheduler         = User{"scheduler", "system:kube-scheduler", nil}
	Kwok              = User{"kwok", KwokUser, nil}
	NodeSim           = User{"node-sim", NodeSimUser, nil}
)

// Kubeconfig signs a client certificate for the user. It returns a kubeconfig with the certificate, its
// key, the CA certificate and the URL of the API server.
func Kubeconfig(clusterName, server string, authority *Authority, user User) ([]byte, error) {
	cert, key, err := pkiutil.NewCertAndKey(authority.Cert, authority.key, leafConfig(user.CommonName, user.Groups, x509.ExtKeyUsageClientAuth))
	if err != nil {
		return nil, fmt.Errorf("client certificate of %s: %w", user.CommonName, err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, fmt.Errorf("client key of %s: %w", user.CommonName, err)
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
		return nil, fmt.Errorf("kubeconfig of %s: %w", user.CommonName, err)
	}
	return content, nil
}
