package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/bench/gateway"
)

// newBenchGatewayFlood returns the hidden command that `k1m bench gateway` starts for the row flood.
func newBenchGatewayFlood() *cobra.Command {
	flooder := &gateway.Flooder{}
	cmd := &cobra.Command{
		Use:    gateway.FloodCommand,
		Short:  "Send small reads at a rate",
		Hidden: true,
		Args:   usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flooder.Validate(); err != nil {
				return err
			}
			report, err := flooder.Run(cmd.Context(), func() { fmt.Fprint(cmd.OutOrStdout(), gateway.FloodConnected) })
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(report)
		},
	}
	flooder.AddFlags(cmd.Flags())
	return cmd
}
