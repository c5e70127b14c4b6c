package component

import (
	"encoding/json"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	webhookadmission "k8s.io/apiserver/pkg/admission/plugin/webhook/config/apis/webhookadmission/v1"
	apiserver "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

const (
	// admissionConfigFile tells the API servers with which certificate they call admission webhooks.
	// webhookKubeconfig has that certificate.
	admissionConfigFile   = "admission.yaml"
	webhookKubeconfigFile = "webhook-client.conf"
)

// admissionConfig returns the AdmissionConfiguration of the API servers.
func admissionConfig(_ clusterdir.Config, dir clusterdir.Dir) ([]byte, error) {
	webhooks, err := json.Marshal(webhookadmission.WebhookAdmission{
		TypeMeta:       metav1.TypeMeta{APIVersion: webhookadmission.SchemeGroupVersion.String(), Kind: "WebhookAdmissionConfiguration"},
		KubeConfigFile: dir.ConfigFile(webhookKubeconfigFile),
	})
	if err != nil {
		return nil, err
	}
	return yaml.Marshal(apiserver.AdmissionConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: apiserver.SchemeGroupVersion.String(), Kind: "AdmissionConfiguration"},
		Plugins: []apiserver.AdmissionPluginConfiguration{{
			Name: "ValidatingAdmissionWebhook", Configuration: &runtime.Unknown{Raw: webhooks, ContentType: runtime.ContentTypeJSON},
		}},
	})
}

// webhookKubeconfig returns the kubeconfig with which API servers authenticate to the webhooks of the
// schedulers. A user in it has the name of the host and port of a webhook, so that other webhooks do not
// get the certificate.
func webhookKubeconfig(config clusterdir.Config, dir clusterdir.Dir) ([]byte, error) {
	kubeconfig := clientcmdapi.NewConfig()
	for _, scheduler := range config.Settings.Schedulers() {
		kubeconfig.AuthInfos[config.Ports.Address(clusterdir.IntakePort(scheduler))] = &clientcmdapi.AuthInfo{
			ClientCertificate: filepath.Join(dir.PKI(), pki.WebhookClientFile+".crt"),
			ClientKey:         filepath.Join(dir.PKI(), pki.WebhookClientFile+".key"),
		}
	}
	return clientcmd.Write(*kubeconfig)
}
