package app

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	logsapi "k8s.io/component-base/logs/api/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
)

const configuration = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: KUBECONFIG}
leaderElection: {leaderElect: false}
profiles: [{plugins: {filter: {enabled: [{name: Ours}]}}}]
`

// kubeconfig points to no API server: plugins are created before the first request.
const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: nowhere, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: nowhere, context: {cluster: nowhere, user: nobody}}]
current-context: nowhere
users: [{name: nobody, user: {}}]
`

// execute runs dist-scheduler with the configuration and further arguments until it fails.
func execute(t *testing.T, args []string, plugins ...Option) error {
	t.Helper()
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	config := write("config", strings.Replace(configuration, "KUBECONFIG", write("kubeconfig", kubeconfig), 1))
	cmd := NewSchedulerCommand(plugins...)
	cmd.SetArgs(append([]string{"--config", config, "--secure-port", "0"}, args...))
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	return cmd.Execute()
}

// TestConfigurationEnablesRegisteredPlugin checks that a plugin that WithPlugin has registered is
// created if the configuration enables it.
func TestConfigurationEnablesRegisteredPlugin(t *testing.T) {
	created := errors.New("plugin was created")
	err := execute(t, nil, WithPlugin("Ours", func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
		return nil, created
	}))
	if !errors.Is(err, created) && (err == nil || !strings.Contains(err.Error(), created.Error())) {
		t.Errorf("Execute() = %v, want %v", err, created)
	}
}

// TestWebhookIsRefusedWithoutIndex enables the feature gate with which upstream schedules running pods. The intake
// needs the index, which does not support that.
func TestWebhookIsRefusedWithoutIndex(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.InPlacePodVerticalScalingSchedulerPreemption, true)
	err := execute(t, []string{"--intake", "webhook"})
	if !errors.Is(err, attach.ErrResizePreemption) || !strings.Contains(err.Error(), "--intake watch") {
		t.Errorf("Execute() = %v, want %v", err, attach.ErrResizePreemption)
	}
}
