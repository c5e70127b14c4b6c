package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/snapshot"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func newSnapshot(name *string, version string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Save a cluster in a file, and create clusters from the file",
		Long: `Save a cluster in a file, and create clusters from the file. The file contains the data of the
store, the settings, and the certificates and private keys of the cluster: keep it secret.`,
		Example: `  # Save the cluster "k1m"
  k1m snapshot save k1m large.k1m

  # Create the cluster "copy" from it, and start the cluster
  k1m snapshot restore copy large.k1m
  k1m up --name copy`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSnapshotSave(name, version), newSnapshotRestore(name), newSnapshotInspect())
	return cmd
}

func newSnapshotSave(name *string, version string) *cobra.Command {
	return &cobra.Command{
		Use:   "save [NAME] FILE",
		Short: "Save a running or stopped cluster in a file",
		Long: `Save a running or stopped cluster in a file. NAME is the name of the cluster; without it, that
of --name. The data is a consistent state of the store. The store of a stopped cluster is started for the
time that the command takes.

An existing file is replaced when the new one is complete. The file has mode 0600, because it contains
private keys.`,
		Example: `  # Save the cluster "k1m"
  k1m snapshot save k1m large.k1m`,
		Args: usageArgs(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, file, err := clusterAndFile(cmd, *name, args)
			if err != nil {
				return err
			}
			display := progress.New(cmd.ErrOrStderr())
			manifest, err := snapshot.Save(cmd.Context(), snapshot.SaveOptions{Dir: dir, File: file, Version: version, Display: display})
			display.Close()
			if err != nil {
				return interruptedOr(cmd, err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Cluster %q is saved in %s (%s): %d keys, %d nodes, %d pods, revision %d.\n",
				dir.Name(), file, fileSize(file), manifest.Store.Keys, manifest.Store.Nodes, manifest.Store.Pods, manifest.Store.Revision)
			return nil
		},
	}
}

func newSnapshotRestore(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "restore [NAME] FILE",
		Short: "Create a cluster from a file",
		Long: `Create a cluster from a file. NAME is the name of the new cluster; without it, that of --name.
The cluster must not exist. "k1m up --name NAME" then starts it.

The new cluster has the settings, certificates, keys and objects of the saved one. Kubeconfig files of one
of them are therefore valid for the other, at another port. The revision of the store is raised by
1,000,000,000, and all lower revisions are compacted. A client with a resourceVersion of the saved cluster
gets the error "too old resource version" and lists all objects again.

Restore only files that you trust: the settings can contain any flags and environment variables of the
components.`,
		Example: `  # Create the cluster "copy"
  k1m snapshot restore copy large.k1m
  k1m up --name copy`,
		Args: usageArgs(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, file, err := clusterAndFile(cmd, *name, args)
			if err != nil {
				return err
			}
			display := progress.New(cmd.ErrOrStderr())
			result, err := snapshot.Restore(cmd.Context(), snapshot.RestoreOptions{Dir: dir, File: file, Display: display})
			display.Close()
			if err != nil {
				return interruptedOr(cmd, err)
			}
			for _, change := range result.Changes {
				fmt.Fprintf(cmd.OutOrStdout(), "Changed: %s\n", change)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Cluster %q is created from %s: %d keys, %d nodes, %d pods. Start it with `%s up --name %s`.\n",
				dir.Name(), file, result.Manifest.Store.Keys, result.Manifest.Store.Nodes, result.Manifest.Store.Pods, os.Args[0], dir.Name())
			return nil
		},
	}
}

func newSnapshotInspect() *cobra.Command {
	output := outputText
	cmd := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Print what a file contains",
		Long: `Print what a file contains, from the manifest at its start. The command does not verify the
rest of the file; a restore does.`,
		Example: `  k1m snapshot inspect large.k1m

  # Print the files with their sizes and checksums
  k1m snapshot inspect large.k1m -o json | jq .files`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := validateOutput(output); err != nil {
				return err
			}
			manifest, err := snapshot.Inspect(args[0])
			if err != nil {
				return err
			}
			return printAs(cmd, output, manifest, manifest.Print)
		},
	}
	addOutputFlag(cmd, &output)
	return cmd
}

// fileSize returns the size of a file for users.
func fileSize(path string) string {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "unknown size"
	case info.Size() < 1<<20:
		return fmt.Sprintf("%d KiB", info.Size()>>10)
	}
	return fmt.Sprintf("%.1f MiB", float64(info.Size())/(1<<20))
}

// clusterAndFile returns the directory of the cluster and the file that the arguments of a command name. The
// name of the cluster is optional.
func clusterAndFile(cmd *cobra.Command, name string, args []string) (dir clusterdir.Dir, file string, err error) {
	if len(args) == 2 {
		if cmd.Flag("name").Changed && name != args[0] {
			return dir, "", usage.Errorf("--name %s and the argument %s name different clusters; omit one of them", name, args[0])
		}
		name = args[0]
	}
	dir, err = clusterDir(name)
	return dir, args[len(args)-1], err
}

// interruptedOr returns the error of a command, or that it was interrupted.
func interruptedOr(cmd *cobra.Command, err error) error {
	if cmd.Context().Err() != nil {
		return errors.New("interrupted")
	}
	return err
}
