// Package pki creates the certificates, keys and kubeconfigs of a cluster. It uses kubeadm's list of
// certificates, so file names, subjects and key usages are those of a kubeadm cluster.
//
// [Ensure] creates missing certificates, keeps existing ones, and renews leaf certificates that expire
// within 30 days. It returns the cluster's certificate [Authority]. With it, [Kubeconfig] signs the
// client certificate of a [User]. [EnsureReplicas] does the same for the scheduler replicas, which have a
// certificate authority of their own.
package pki

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/constants"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/certs"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil"
)

// ErrUnreadable means that a certificate or key exists but cannot be used.
var ErrUnreadable = errors.New("unreadable certificate")

const (
	// keyAlgorithm is ECDSA, because generating an ECDSA key takes about 1 ms, while generating the
	// RSA keys of a cluster takes seconds.
	keyAlgorithm = kubeadm.EncryptionAlgorithmECDSAP256

	leafValidity = 365 * 24 * time.Hour
	caValidity   = 10 * leafValidity
	// renewBefore is the remaining validity below which a leaf certificate is renewed.
	renewBefore = 30 * 24 * time.Hour
)

// With this certificate the API servers authenticate to the admission webhook of dist-scheduler.
const (
	// WebhookClientFile is the base name of the certificate and its key, without extension.
	WebhookClientFile = "apiserver-webhook-client"
	// WebhookClientName is the common name in the certificate.
	WebhookClientName = "kube-apiserver-webhook-client"
)

// GatewayFile is the base name of the serving certificate of kube-gateway and its key, without extension.
const GatewayFile = "kube-gateway"

// With this certificate the gateways authenticate to the store. mem_etcd limits it to the Leases of nodes.
const (
	// GatewayStoreFile is the base name of the certificate and its key, without extension.
	GatewayStoreFile = "etcd/kube-gateway-client"
	// GatewayStoreName is the common name in the certificate.
	GatewayStoreName = "kube-gateway"
)

// Authority is a certificate authority with its private key.
type Authority struct {
	Cert *x509.Certificate
	key  crypto.Signer
}

// Ensure creates the certificates and keys in dir that are missing, renews leaf certificates that expire
// soon, and returns the cluster CA. If an existing file cannot be used, the error wraps ErrUnreadable;
// Ensure does not overwrite the file.
func Ensure(dir, clusterName, serviceCIDR string, loopback net.IP) (*Authority, error) {
	init := initConfiguration(dir, clusterName, serviceCIDR, loopback)
	tree, err := certs.GetDefaultCertList().AsMap().CertTree()
	if err != nil {
		return nil, fmt.Errorf("reading kubeadm's list of certificates: %w", err)
	}
	var clusterCA *Authority
	for spec, leaves := range tree {
		authority, err := ensureAuthority(dir, spec, init)
		if err != nil {
			return nil, err
		}
		for _, leaf := range leaves {
			config, err := leaf.GetConfig(init)
			if err != nil {
				return nil, fmt.Errorf("certificate %s: %w", leaf.Name, err)
			}
			if err := ensureLeaf(dir, leaf.BaseName, authority, config); err != nil {
				return nil, err
			}
		}
		switch spec.BaseName {
		case constants.CACertAndKeyBaseName:
			clusterCA = authority
		case constants.EtcdCACertAndKeyBaseName:
			config := leafConfig(GatewayStoreName, nil, x509.ExtKeyUsageClientAuth)
			if err := ensureLeaf(dir, GatewayStoreFile, authority, config); err != nil {
				return nil, err
			}
		}
	}
	if err := ensureServing(dir, clusterCA, loopback); err != nil {
		return nil, err
	}
	if err := ensureGateway(dir, clusterCA, init); err != nil {
		return nil, err
	}
	if err := ensureLeaf(dir, WebhookClientFile, clusterCA, leafConfig(WebhookClientName, nil, x509.ExtKeyUsageClientAuth)); err != nil {
		return nil, err
	}
	return clusterCA, ensureServiceAccountKey(dir)
}

// initConfiguration returns the kubeadm configuration from which kubeadm derives the certificates.
func initConfiguration(dir, clusterName, serviceCIDR string, loopback net.IP) *kubeadm.InitConfiguration {
	return &kubeadm.InitConfiguration{
		ClusterConfiguration: kubeadm.ClusterConfiguration{
			ClusterName:                 clusterName,
			CertificatesDir:             dir,
			EncryptionAlgorithm:         keyAlgorithm,
			CertificateValidityPeriod:   &metav1.Duration{Duration: leafValidity},
			CACertificateValidityPeriod: &metav1.Duration{Duration: caValidity},
			Networking:                  kubeadm.Networking{ServiceSubnet: serviceCIDR, DNSDomain: "cluster.local"},
			Etcd:                        kubeadm.Etcd{Local: &kubeadm.LocalEtcd{}},
		},
		LocalAPIEndpoint: kubeadm.APIEndpoint{AdvertiseAddress: loopback.String()},
		NodeRegistration: kubeadm.NodeRegistrationOptions{Name: "localhost"},
	}
}

// ensureAuthority reads a CA, or creates it if it does not exist.
func ensureAuthority(dir string, spec *certs.KubeadmCert, init *kubeadm.InitConfiguration) (*Authority, error) {
	if pkiutil.CertOrKeyExist(dir, spec.BaseName) {
		cert, key, err := pkiutil.TryLoadCertAndKeyFromDisk(dir, spec.BaseName)
		if err == nil {
			err = pkiutil.ValidateCertPeriod(cert, 0)
		}
		if err != nil {
			return nil, unreadable(dir, spec.BaseName, err)
		}
		return &Authority{cert, key}, nil
	}
	config, err := spec.GetConfig(init)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", spec.Name, err)
	}
	cert, key, err := pkiutil.NewCertificateAuthority(config)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", spec.Name, err)
	}
	return &Authority{cert, key}, write(dir, spec.BaseName, cert, key)
}

// ensureLeaf creates or renews a certificate that authority signs, unless a valid one exists.
func ensureLeaf(dir, name string, authority *Authority, config *pkiutil.CertConfig) error {
	if pkiutil.CertOrKeyExist(dir, name) {
		cert, _, err := pkiutil.TryLoadCertAndKeyFromDisk(dir, name)
		if err != nil {
			return unreadable(dir, name, err)
		}
		if err := pkiutil.VerifyCertChain(cert, nil, authority.Cert); err != nil {
			return unreadable(dir, name, err)
		}
		if time.Until(cert.NotAfter) > renewBefore {
			return nil
		}
	}
	cert, key, err := pkiutil.NewCertAndKey(authority.Cert, authority.key, config)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", name, err)
	}
	return write(dir, name, cert, key)
}

// ensureServing creates serving certificates of kube-controller-manager and the schedulers, which have
// self-signed certificates in a kubeadm cluster. The cluster CA signs them, so that probes and Prometheus
// can verify them.
func ensureServing(dir string, authority *Authority, loopback net.IP) error {
	for _, name := range []string{"kube-controller-manager", "kube-scheduler", "dist-scheduler"} {
		config := leafConfig(name, nil, x509.ExtKeyUsageServerAuth)
		config.AltNames = certutil.AltNames{DNSNames: []string{"localhost"}, IPs: []net.IP{loopback}}
		if err := ensureLeaf(dir, name, authority, config); err != nil {
			return err
		}
	}
	return nil
}

// ensureGateway creates the serving certificate of kube-gateway. It has the names and addresses of the API
// servers' certificate, because clients may reach the gateway by any of them.
func ensureGateway(dir string, authority *Authority, init *kubeadm.InitConfiguration) error {
	names, err := pkiutil.GetAPIServerAltNames(init)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", GatewayFile, err)
	}
	config := leafConfig(GatewayFile, nil, x509.ExtKeyUsageServerAuth)
	config.AltNames = *names
	return ensureLeaf(dir, GatewayFile, authority, config)
}

func ensureServiceAccountKey(dir string) error {
	name := constants.ServiceAccountKeyBaseName
	if pkiutil.CertOrKeyExist(dir, name) {
		if _, _, err := pkiutil.TryLoadPrivatePublicKeyFromDisk(dir, name); err != nil {
			return unreadable(dir, name, err)
		}
		return nil
	}
	key, err := pkiutil.GeneratePrivateKey(keyAlgorithm)
	if err != nil {
		return fmt.Errorf("service-account key: %w", err)
	}
	err = errors.Join(pkiutil.WriteKey(dir, name, key), pkiutil.WritePublicKey(dir, name, key.Public()))
	if err != nil {
		return fmt.Errorf("writing the service-account key: %w", err)
	}
	return nil
}

// leafConfig returns the configuration of a certificate for a component or user.
func leafConfig(commonName string, groups []string, usage x509.ExtKeyUsage) *pkiutil.CertConfig {
	return &pkiutil.CertConfig{
		Config: certutil.Config{
			CommonName:   commonName,
			Organization: groups,
			Usages:       []x509.ExtKeyUsage{usage},
			NotBefore:    time.Now().Add(-constants.CertificateBackdate),
		},
		NotAfter:            time.Now().Add(leafValidity),
		EncryptionAlgorithm: keyAlgorithm,
	}
}

func write(dir, name string, cert *x509.Certificate, key crypto.Signer) error {
	if err := pkiutil.WriteCertAndKey(dir, name, cert, key); err != nil {
		return fmt.Errorf("writing certificate %s: %w", name, err)
	}
	return nil
}

// unreadable returns an error for an existing file that cannot be used.
func unreadable(dir, name string, err error) error {
	return fmt.Errorf("%w: %s: %w; restore it, or start over with `k1m down`", ErrUnreadable, filepath.Join(dir, name), err)
}
