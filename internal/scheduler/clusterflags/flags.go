// Package clusterflags has what the commands explain and simulate have in common: the flags that name a cluster and a
// configuration, the format of the output, and how errors are reported.
package clusterflags

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"sigs.k8s.io/yaml"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/clusterfile"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Formats of the output.
const (
	Table = "table"
	JSON  = "json"
	YAML  = "yaml"
)

// Flags are the values of the flags.
type Flags struct {
	// Cluster are files with the cluster. If there are none, a running cluster is read.
	Cluster []string
	// Kubeconfig and Context name the running cluster.
	Kubeconfig, Context string
	// ConfigFile is the KubeSchedulerConfiguration.
	ConfigFile string
	Output     string
}

// Add adds the flags of the cluster and of the output to a command. configFlag is the name of the flag of the
// configuration.
func (f *Flags) Add(cmd *cobra.Command, configFlag string) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.Cluster, "cluster", nil, "file or directory (`PATH`) with the cluster: the output of \"kubectl get -o json\" or \"-o yaml\", a snapshot of etcd or mem_etcd, or a snapshot of k1m; \"-\" is standard input; can be repeated")
	flags.StringVar(&f.ConfigFile, configFlag, "", "`FILE` with the KubeSchedulerConfiguration: profiles and the arguments of plugins (default: the default profile)")
	flags.StringVarP(&f.Output, "output", "o", Table, "`FORMAT` of the output: table, json or yaml")
	for _, name := range []string{"cluster", configFlag} {
		_ = cmd.MarkFlagFilename(name, "yaml", "yml", "json")
	}
}

// AddLive adds the flags that name a running cluster.
func (f *Flags) AddLive(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.Kubeconfig, "kubeconfig", "", "kubeconfig `FILE` of the cluster to read (default: that of the configuration, else that of kubectl)")
	cmd.Flags().StringVar(&f.Context, "context", "", "`NAME` of the context in the kubeconfig file")
}

// Validate returns an error for values that are not possible.
func (f *Flags) Validate() error {
	switch f.Output {
	case Table, JSON, YAML:
	default:
		return usage.Errorf("--output %q: choose table, json or yaml", f.Output)
	}
	if len(f.Cluster) > 0 && (f.Kubeconfig != "" || f.Context != "") {
		return usage.Errorf("--cluster and --kubeconfig name two clusters; use one of them")
	}
	return nil
}

// LoadConfig reads the configuration of the scheduler, or returns the default one.
func (f *Flags) LoadConfig() (*config.KubeSchedulerConfiguration, error) {
	if f.ConfigFile == "" {
		return latest.Default()
	}
	cfg, err := options.LoadConfigFromFile(klog.Logger{}, f.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration %s: %s", f.ConfigFile, oneLine(err))
	}
	if err := validation.ValidateKubeSchedulerConfiguration(cfg); err != nil {
		return nil, fmt.Errorf("reading the configuration %s: %s", f.ConfigFile, oneLine(err))
	}
	return cfg, nil
}

// LoadCluster reads the cluster: from files, or a running one. It also returns notes for the user.
func (f *Flags) LoadCluster(ctx context.Context, cfg *config.KubeSchedulerConfiguration, stdin io.Reader) (*clusterfile.Objects, []string, error) {
	objects, err := f.load(ctx, cfg, stdin)
	if err != nil {
		return nil, nil, err
	}
	notes, err := objects.Complete()
	return objects, notes, err
}

func (f *Flags) load(ctx context.Context, cfg *config.KubeSchedulerConfiguration, stdin io.Reader) (*clusterfile.Objects, error) {
	if len(f.Cluster) > 0 {
		return clusterfile.Load(f.Cluster, stdin)
	}
	restConfig, err := f.restConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("finding a cluster: %s; use --kubeconfig or --cluster", oneLine(err))
	}
	client, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server: %s", oneLine(err))
	}
	return clusterfile.Read(ctx, client)
}

// restConfig returns the configuration of the client.
func (f *Flags) restConfig(cfg *config.KubeSchedulerConfiguration) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.Kubeconfig
	if f.Kubeconfig == "" && cfg.ClientConnection.Kubeconfig != "" {
		rules.ExplicitPath = cfg.ClientConnection.Kubeconfig
	}
	restConfig, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{
		CurrentContext: f.Context,
	}).ClientConfig()
	if err != nil {
		return nil, err
	}
	restConfig.QPS = -1
	restConfig.ContentType = "application/vnd.kubernetes.protobuf"
	restConfig.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return restConfig, nil
}

// Print writes a result in the format of the output: table calls the function for tables.
func (f *Flags) Print(w io.Writer, result any, table func(io.Writer) error) error {
	switch f.Output {
	case JSON:
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(result)
	case YAML:
		encoded, err := yaml.Marshal(result)
		if err != nil {
			return err
		}
		_, err = w.Write(encoded)
		return err
	}
	return table(w)
}

// Registry returns a registry with out-of-tree plugins.
func Registry[O ~func(frameworkruntime.Registry) error](plugins []O) (frameworkruntime.Registry, error) {
	registry := frameworkruntime.Registry{}
	for _, register := range plugins {
		if err := register(registry); err != nil {
			return nil, err
		}
	}
	return registry, nil
}

// ErrDeviation is the error if the two schedulers decide differently. The output names the deviations.
var ErrDeviation = errors.New("dist-scheduler and kube-scheduler decide differently; please report this, with the output of -o json")

// Run wraps the function of a command: its errors are printed on one line, and end the process with code 2 for bad usage
// and 1 otherwise.
func Run(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if err == nil {
			return nil
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", cmd.CommandPath(), oneLine(err))
		code := 1
		if errors.Is(err, usage.Err) {
			code = 2
		}
		exit(code)
		return err
	}
}

// exit ends the process. Tests replace it.
var exit = os.Exit

// oneLine returns the text of an error without line breaks.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// Prepare makes a command independent of its parent, dist-scheduler, whose help lists the flags of kube-scheduler. Wrong
// flags are errors of one line.
func Prepare(cmd *cobra.Command) *cobra.Command {
	plain := &cobra.Command{}
	cmd.SetHelpFunc(plain.HelpFunc())
	cmd.SetUsageFunc(plain.UsageFunc())
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s; see `%s --help`\n", cmd.CommandPath(), oneLine(err), cmd.CommandPath())
		exit(2)
		return err
	})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: unexpected argument %q; see `%s --help`\n", cmd.CommandPath(), args[0], cmd.CommandPath())
		exit(2)
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	cmd.RunE = Run(cmd.RunE)
	return cmd
}
