package cli

import (
	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/dashboard"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

func newMetrics(name *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "metrics",
		Short: "Look at a cluster with Prometheus and Grafana",
		Long: `Look at a cluster with Prometheus and Grafana, which you bring along. The one reads the
pages with metrics of all components, the other has a dashboard over them. For a glance in
the terminal there is ` + "`k1m top`" + `.`,
		Example: `  k1m metrics prometheus > prometheus.yml && prometheus --config.file prometheus.yml
  k1m metrics dashboard > k8s-1m.json      # import it into Grafana`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newMetricsPrometheus(name), newMetricsDashboard())
	return cmd
}

func newMetricsPrometheus(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "prometheus",
		Short: "Print a configuration for Prometheus that reads all components of a cluster",
		Long: `Print a configuration for Prometheus (2.44 or later) that reads all components of a
cluster each second. The administrator's key is in it, so keep it to yourself.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := dirOf(*name)
			if err != nil {
				return err
			}
			config, err := clusterdir.Load(dir)
			if err != nil {
				return err
			}
			rest, err := kube.Config(dir.Kubeconfig(pki.Admin.File))
			if err != nil {
				return err
			}
			var targets []dashboard.Target
			for _, page := range component.Pages(config) {
				targets = append(targets, dashboard.Target{Job: page.Role, Instance: page.Component, URL: page.URL})
			}
			text, err := dashboard.Prometheus(*name, targets, dashboard.Credentials{CA: rest.CAData, Cert: rest.CertData, Key: rest.KeyData})
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
}

func newMetricsDashboard() *cobra.Command {
	return &cobra.Command{
		Use:   "dashboard",
		Short: "Print the dashboard for Grafana",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := dashboard.JSON()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
}
