package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/k8s-1m/k8s-1m/internal/cluster/plan"
	"github.com/k8s-1m/k8s-1m/internal/cluster/plan/price"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Output formats of k1m plan, besides outputText, which is another name of outputTable, and outputJSON.
const (
	outputTable = "table"
	outputYAML  = "yaml"
	outputHTML  = "html"
)

// priceFlags are the flags of k1m plan about prices.
type priceFlags struct {
	file     string
	existing string
	options  price.Options
	purchase string
	// types are the machine types that the user chose, by component.
	types map[string]*string
}

func newPriceFlags() *priceFlags {
	return &priceFlags{purchase: string(price.OnDemand), options: price.Options{Clients: price.SameZone}, types: map[string]*string{}}
}

// machineFlags are the flags that choose the machine type of a component.
var machineFlags = map[string]string{
	plan.Store: "store-machine", plan.APIServer: "apiserver-machine", plan.Gateway: "gateway-machine", plan.Scheduler: "scheduler-machine",
}

// sizeFlags are the flags of machine sizes. A price list replaces them.
var sizeFlags = []string{
	"store-cores", "store-memory", "apiserver-cores", "apiserver-memory", "gateway-cores", "gateway-memory", "scheduler-cores", "scheduler-memory",
}

func (f *priceFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.file, "prices", f.file, "price list (YAML): compute the price of the cluster on the cheapest sufficient machines of the list")
	flags.StringVar(&f.purchase, "purchase", f.purchase, "how machines are paid: on-demand|spot|reserved-1y|reserved-3y")
	flags.StringVar(&f.options.Clients, "clients", f.options.Clients, "where the clients of API servers are, for the price of traffic: zone (the same)|zones (others)|internet")
	flags.StringVar(&f.existing, "existing", f.existing, "machines of an existing cluster (YAML), to price beside the plan")
	for component, name := range machineFlags {
		f.types[component] = flags.String(name, "", fmt.Sprintf("machine type of %s in the price list (default: the cheapest one that is sufficient)", component))
	}
}

// validate returns a usage error if the flags do not fit each other.
func (f *priceFlags) validate(flags *pflag.FlagSet, output string) error {
	if !slices.Contains([]string{outputTable, outputText, outputJSON, outputYAML, outputHTML}, output) {
		return usage.Errorf("-o %q: no such format; choose table, json, yaml or html", output)
	}
	if f.file == "" {
		for _, name := range append([]string{"purchase", "clients", "existing"}, f.machineFlagNames()...) {
			if flags.Changed(name) {
				return usage.Errorf("--%s needs --prices; add it or omit --%s", name, name)
			}
		}
		if output == outputHTML {
			return usage.Errorf("-o html needs --prices; add it or choose table, json or yaml")
		}
		return nil
	}
	for _, name := range sizeFlags {
		if flags.Changed(name) {
			return usage.Errorf("--%s: with --prices, machines have the sizes of the price list; use --%s-machine to choose a type", name, strings.SplitN(name, "-", 2)[0])
		}
	}
	f.options.Purchase = price.Purchase(f.purchase)
	f.options.Types = map[string]string{}
	for component, name := range f.types {
		f.options.Types[component] = *name
	}
	return f.options.Validate()
}

func (f *priceFlags) machineFlagNames() []string {
	var names []string
	for _, component := range []string{plan.Store, plan.APIServer, plan.Gateway, plan.Scheduler} {
		names = append(names, machineFlags[component])
	}
	return names
}

// pricedPlan is a plan and its price.
type pricedPlan struct {
	*plan.Plan
	Price *price.Report `json:"price,omitempty"`
}

// print computes and prints a plan, and its price if there is a price list.
func (f *priceFlags) print(cmd *cobra.Command, output string, nodes plan.Cluster, machines plan.Machines, costs plan.Costs) error {
	result, err := f.compute(nodes, machines, costs)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch output {
	case outputJSON:
		return printJSON(cmd, result)
	case outputYAML:
		text, err := yaml.Marshal(result)
		if err == nil {
			_, err = out.Write(text)
		}
		return err
	case outputHTML:
		return result.Price.WritePage(out, result.Plan)
	}
	result.Plan.Print(out)
	if result.Price != nil {
		fmt.Fprintln(out)
		result.Price.Print(out)
	}
	return nil
}

// compute returns the plan, and its price if there is a price list.
func (f *priceFlags) compute(nodes plan.Cluster, machines plan.Machines, costs plan.Costs) (pricedPlan, error) {
	if f.file == "" {
		p := plan.Make(nodes, machines, costs)
		return pricedPlan{Plan: &p}, nil
	}
	list, err := price.Read(f.file)
	if err != nil {
		return pricedPlan{}, err
	}
	p, report, err := price.Plan(list, nodes, machines, costs, f.options)
	if err != nil {
		return pricedPlan{}, err
	}
	if f.existing != "" {
		existing, err := price.ReadExisting(f.existing)
		if err != nil {
			return pricedPlan{}, err
		}
		if err := report.Compare(list, existing); err != nil {
			return pricedPlan{}, err
		}
	}
	return pricedPlan{p, report}, nil
}
