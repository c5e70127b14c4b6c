package cli

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const (
	outputText = "text"
	outputJSON = "json"
)

func addOutputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", *output, "output format: text|json")
}

func validateOutput(output string) error {
	if output != outputText && output != outputJSON {
		return usage.Errorf("-o %q: no such format; choose text or json", output)
	}
	return nil
}

// printAs prints a result in an output format. print writes the text form of the result.
func printAs(cmd *cobra.Command, output string, result any, print func(io.Writer)) error {
	if output == outputJSON {
		return printJSON(cmd, result)
	}
	print(cmd.OutOrStdout())
	return nil
}

func printJSON(cmd *cobra.Command, value any) error {
	encoder := json.NewEncoder(cmd.OutOrStdout())
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
