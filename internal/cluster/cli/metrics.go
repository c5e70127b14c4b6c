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
		Short: "Print configurations for Prometheus and Grafana",
		Long: `Print configurations with which Prometheus and Grafana monitor a cluster: a scrape
configuration for all components, and a dashboard. k1m does not include Prometheus or Grafana.
` + "`k1m top`" + ` shows the most important metrics in the terminal.`,
		Example: `  # Run Prometheus for the cluster
  k1m metrics prometheus > prometheus.yml && prometheus --config.file prometheus.yml

  # Write the dashboard to a file, which Grafana can import
  k1m metrics dashboard > k8s-1m.json`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newMetricsPrometheus(name), newMetricsDashboard())
	return cmd
}

func newMetricsPrometheus(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "prometheus",
		Short: "Print a Prometheus configuration that scrapes all components of a cluster",
		Long: `Print a configuration for Prometheus 2.44 or later that scrapes all components of a cluster
every second. The configuration contains the private key of the cluster's administrator.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := clusterDir(*name)
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
			for _, endpoint := range component.MetricsEndpoints(config) {
				targets = append(targets, dashboard.Target{Job: endpoint.Role, Instance: endpoint.Component, URL: endpoint.URL})
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
		Short: "Print the Grafana dashboard",
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
