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
	fwk "k8s.io/kube-scheduler/framework"
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

// TestConfigurationEnablesRegisteredPlugin checks that a plugin that WithPlugin has registered is
// created if the configuration enables it.
func TestConfigurationEnablesRegisteredPlugin(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	config := write("config", strings.Replace(configuration, "KUBECONFIG", write("kubeconfig", kubeconfig), 1))
	created := errors.New("plugin was created")
	cmd := NewSchedulerCommand(WithPlugin("Ours", func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
		return nil, created
	}))
	cmd.SetArgs([]string{"--config", config, "--secure-port", "0"})
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	if err := cmd.Execute(); !errors.Is(err, created) && (err == nil || !strings.Contains(err.Error(), created.Error())) {
		t.Errorf("Execute() = %v, want %v", err, created)
	}
}
