package cli

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-1m/k8s-1m/internal/cluster/certificates"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func newCertificates() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certificates",
		Short: "Keep certificates in Secrets of a cluster, as the Helm chart does",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCertificatesApply())
	return cmd
}

func newCertificatesApply() *cobra.Command {
	namespace, kubeconfig := "default", ""
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "Create the certificates that are missing, and renew those that expire within ten days",
		Long: `Create the certificates of a file that are missing in a cluster, and renew those that expire within ten days.
Each is a Secret with tls.crt, tls.key and ca.crt. FILE lists the authorities and the certificates, and the Helm
chart writes it. Secrets with other origins are never changed.

In a pod, the command connects to its cluster with the pod's service account.`,
		Example: `  k1m certificates apply certificates.yaml --namespace k8s-1m --kubeconfig admin.conf`,
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := os.ReadFile(args[0])
			if err != nil {
				return usage.Errorf("%v; name the file with the certificates", err)
			}
			spec, err := certificates.Parse(text)
			if err != nil {
				return usage.Errorf("%s: %v", args[0], err)
			}
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return usage.Errorf("%v; name the cluster with --kubeconfig", err)
			}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return err
			}
			written, err := certificates.Apply(cmd.Context(), client, namespace, spec, time.Now())
			for _, name := range written {
				fmt.Fprintf(cmd.OutOrStdout(), "Secret %s/%s was written.\n", namespace, name)
			}
			if err != nil {
				return interruptedOr(cmd, err)
			}
			all := len(spec.Authorities) + len(spec.Certificates)
			fmt.Fprintf(cmd.OutOrStdout(), "%d of %d Secrets were up to date.\n", all-len(written), all)
			return nil
		},
	}
	cmd.Flags().StringVar(&namespace, "namespace", namespace, "namespace of the Secrets")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", kubeconfig, "kubeconfig of the cluster (default: that of the pod)")
	return cmd
}
