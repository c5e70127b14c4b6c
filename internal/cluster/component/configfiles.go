package component

import (
	"fmt"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/atomicfile"
)

// WriteConfigFiles writes the configuration files of the components that have options without a flag.
func WriteConfigFiles(config clusterdir.Config, dir clusterdir.Dir) error {
	type file struct {
		name    string
		content func(clusterdir.Config, clusterdir.Dir) ([]byte, error)
	}
	files := []file{{schedulerConfigFile, schedulerConfig}, {kwokConfigFile, kwokConfig}}
	if config.Settings.SchedulerIntake == clusterdir.IntakeWebhook {
		files = append(files, file{admissionConfigFile, admissionConfig}, file{webhookKubeconfigFile, webhookKubeconfig})
	}
	for _, name := range config.Settings.GatewayNames() {
		files = append(files, file{gatewayConfigFile(name), func(config clusterdir.Config, dir clusterdir.Dir) ([]byte, error) {
			return gatewayConfig(config, dir, name)
		}})
	}
	for _, file := range files {
		content, err := file.content(config, dir)
		if err != nil {
			return err
		}
		if err := atomicfile.Write(dir.ConfigFile(file.name), content, 0o600); err != nil {
			return fmt.Errorf("writing %s: %w", dir.ConfigFile(file.name), err)
		}
	}
	return nil
}
