package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/storedata"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func newStoreCompare() *cobra.Command {
	var first, second component.StoreClient
	options := storedata.CompareOptions{Shown: 20}
	output := outputText
	cmd := &cobra.Command{
		Use:   "compare ENDPOINT ENDPOINT",
		Short: "Check that two stores hold the same",
		Long: `Check that two stores hold the same keys with the same values, create and mod revisions,
versions and leases, and the same leases with the same granted TTLs. The exit code is 1 if they differ.

Each store is read at the revision that it has at the start, in pages of a few MiB. Writes that only one of
them gets are differences, so stop the clients of both. The current revisions of the stores are printed but
not compared: a restore can raise that of the copy.`,
		Example: `  # Compare a store with its copy
  k1m store compare http://127.0.0.1:2379 http://127.0.0.1:2479

  # Compare only Leases, and print all differences as JSON
  k1m store compare http://127.0.0.1:2379 http://127.0.0.1:2479 --prefix /registry/leases/ --max-differences 1000000 -o json`,
		Args: usageArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := validateOutput(output); err != nil {
				return err
			}
			if options.Shown < 0 {
				return usage.Errorf("--max-differences %d: must be 0 or more", options.Shown)
			}
			first.Endpoint, second.Endpoint = args[0], args[1]
			comparison, err := compareStores(cmd, options, first, sameUnlessSet(second, first))
			if err != nil {
				return interruptedOr(cmd, err)
			}
			if err := printAs(cmd, output, comparison, comparison.Print); err != nil {
				return err
			}
			if comparison.Differing > 0 {
				return fmt.Errorf("the stores differ in %d keys and leases", comparison.Differing)
			}
			return nil
		},
	}
	addTLSFlags(cmd.Flags(), &first, "", "the first store")
	addTLSFlags(cmd.Flags(), &second, "second-", "the second store, by default that of the first")
	cmd.Flags().StringVar(&options.Prefix, "prefix", options.Prefix, "prefix of the keys to compare; leases are compared only without it")
	cmd.Flags().IntVar(&options.Shown, "max-differences", options.Shown, "number of differences to print; all are counted")
	addOutputFlag(cmd, &output)
	return cmd
}

// sameUnlessSet returns the parameters of the second store, with files of the first one where it has none.
func sameUnlessSet(second, first component.StoreClient) component.StoreClient {
	if second.CAFile == "" {
		second.CAFile = first.CAFile
	}
	if second.CertFile == "" && second.KeyFile == "" {
		second.CertFile, second.KeyFile = first.CertFile, first.KeyFile
	}
	return second
}

func compareStores(cmd *cobra.Command, o storedata.CompareOptions, first, second component.StoreClient) (c storedata.Comparison, err error) {
	if o.First, err = dialStore(cmd.Context(), first); err != nil {
		return c, err
	}
	defer o.First.Close()
	if o.Second, err = dialStore(cmd.Context(), second); err != nil {
		return c, err
	}
	defer o.Second.Close()
	display := progress.New(cmd.ErrOrStderr())
	defer display.Close()
	o.Display = display
	return storedata.Compare(cmd.Context(), o)
}
