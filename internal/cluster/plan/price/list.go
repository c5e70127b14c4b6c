// Package price turns the needs of a [plan.Plan] into machines, disks, traffic and money. A [List] has the
// prices of a provider. [Plan] chooses the cheapest machines of the list that are sufficient for a cluster, and
// returns a [Report]: the bill by component, and what more money would buy.
//
// A report covers the control plane. It has no prices of the nodes, because a plan does not say what their
// pods need.
//
// Invariants: an amount is either computed from prices of the list, or it is missing and a note of the report
// says so; a missing price is never counted as 0.
package price

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// HoursOfMonth converts prices of an hour to prices of a month, and back, where a list has only one of them.
const HoursOfMonth = 730

// Purchase is a way to pay for a machine.
type Purchase string

// The ways to pay for a machine. A provider can stop spot machines at any time; reserved machines are paid for
// one year or three years, whether they run or not.
const (
	OnDemand   Purchase = "on-demand"
	Spot       Purchase = "spot"
	Reserved1Y Purchase = "reserved-1y"
	Reserved3Y Purchase = "reserved-3y"
)

// Purchases are all ways to pay, in the order of tables.
var Purchases = []Purchase{OnDemand, Spot, Reserved1Y, Reserved3Y}

// List is the price list of a provider. Prices are in units of the currency.
type List struct {
	Provider string `yaml:"provider"`
	Region   string `yaml:"region"`
	// Currency is an ISO 4217 code.
	Currency string `yaml:"currency"`
	// Date is the day of which the prices are, or on which they were read. Source says where.
	Date   time.Time `yaml:"date"`
	Source string    `yaml:"source"`
	// Notes are printed below a bill.
	Notes    []string  `yaml:"notes"`
	Machines []Machine `yaml:"machines"`
	Disk     *Disk     `yaml:"disk"`
	Traffic  *Traffic  `yaml:"traffic"`
}

// Machine is a type of machine.
type Machine struct {
	Type   string  `yaml:"type"`
	Cores  float64 `yaml:"cores"`
	Memory float64 `yaml:"memoryGiB"`
	// Disk is the size of the disk that the price includes, in GiB, and Traffic the traffic to the internet
	// that it includes, in GiB a month.
	Disk    float64 `yaml:"diskGiB"`
	Traffic float64 `yaml:"trafficGiB"`
	// For is the list of components for which the type is considered; all if it is missing.
	For    []string          `yaml:"for"`
	Prices map[Purchase]Rate `yaml:"prices"`
	// Date and Source replace those of the list.
	Date   time.Time `yaml:"date"`
	Source string    `yaml:"source"`
}

// Rate is the price of an hour and of a month. In a file, one of them may be missing.
type Rate struct {
	Hour  float64 `yaml:"hour" json:"hour"`
	Month float64 `yaml:"month" json:"month"`
}

// Disk is the kind of disk that machines without an included disk get.
type Disk struct {
	Kind string `yaml:"kind"`
	// GiBMonth is the price of a GiB for a month.
	GiBMonth float64 `yaml:"perGiBMonth"`
}

// Traffic has the prices of a GiB. Zone is for traffic between machines of one zone, and Zones for traffic
// between zones of one region, counted once for each GiB that is sent.
type Traffic struct {
	Zone     *float64 `yaml:"zone"`
	Zones    *float64 `yaml:"zones"`
	Internet []Tier   `yaml:"internet"`
}

// Tier is the price of the traffic of a month that is beyond the tiers before it.
type Tier struct {
	// UpToGiB is the end of the tier; 0 for the last one.
	UpToGiB float64 `yaml:"upToGiB"`
	GiB     float64 `yaml:"perGiB"`
}

// Read reads a price list. Errors are one line and name the field.
func Read(path string) (*List, error) {
	list := &List{}
	if err := readYAML(path, list); err != nil {
		return nil, fmt.Errorf("price list %s: %w", path, err)
	}
	if err := list.validate(); err != nil {
		return nil, fmt.Errorf("price list %s: %w", path, err)
	}
	for i := range list.Machines {
		complete(list.Machines[i].Prices)
	}
	return list, nil
}

// readYAML reads a YAML file with one document into a struct.
func readYAML(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return fmt.Errorf("%s", strings.ReplaceAll(err.Error(), "\n", " "))
	}
	if len(document.Content) == 0 {
		return fmt.Errorf("the file is empty; see deploy/prices for examples")
	}
	return decode(document.Content[0], into)
}

// complete computes the missing prices of hours and months.
func complete(prices map[Purchase]Rate) {
	for purchase, rate := range prices {
		if rate.Hour == 0 {
			rate.Hour = rate.Month / HoursOfMonth
		}
		if rate.Month == 0 {
			rate.Month = rate.Hour * HoursOfMonth
		}
		prices[purchase] = rate
	}
}

// Find returns the machine with this type.
func (l *List) Find(name string) (Machine, bool) {
	i := slices.IndexFunc(l.Machines, func(m Machine) bool { return m.Type == name })
	if i < 0 {
		return Machine{}, false
	}
	return l.Machines[i], true
}

// Types returns the names of all machine types.
func (l *List) Types() []string {
	var names []string
	for _, m := range l.Machines {
		names = append(names, m.Type)
	}
	return names
}
