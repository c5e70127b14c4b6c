package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

// newBenchRender returns the command that renders stored results again.
func newBenchRender() *cobra.Command {
	return &cobra.Command{
		Use:   "render DIR...",
		Short: "Rewrite the page, table and charts of stored results",
		Long: `Rewrite index.html, table.md and the SVG files in each directory from its result.json, without
measuring again. Use this command after a change of the code that draws charts or pages. It changes no
other files.`,
		Example: `  k1m bench render results/2026-11-20T101500Z_limits
  k1m bench render experiments/limits experiments/slo`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(_ *cobra.Command, dirs []string) error {
			var failed []error
			for _, dir := range dirs {
				failed = append(failed, experiment.Render(dir))
			}
			return errors.Join(failed...)
		},
	}
}
