package price

import (
	"fmt"
	"slices"
	"strings"
)

// Existing is the machines of an existing cluster, which are priced beside a plan.
type Existing struct {
	Name   string `yaml:"name"`
	Source string `yaml:"source"`
	// Reported is what the source says about the price.
	Reported string            `yaml:"reportedPrice"`
	Machines []ExistingMachine `yaml:"machines"`
}

// ExistingMachine is a number of machines of one type.
type ExistingMachine struct {
	// Component is a component of the plan, or anything else, such as what simulates the nodes.
	Component string `yaml:"component"`
	Type      string `yaml:"type"`
	Count     int    `yaml:"count"`
}

// Comparison holds the bill of an existing cluster beside that of a plan.
type Comparison struct {
	Name     string `json:"name"`
	Source   string `json:"source"`
	Reported string `json:"reportedPrice,omitempty"`
	Items    []Item `json:"items"`
	// Total is the sum of Items. Planned are the components that the plan also has: their sum in the existing
	// cluster, and in the plan.
	Total   map[Purchase]Rate `json:"total"`
	Planned struct {
		Existing map[Purchase]Rate `json:"existing"`
		Plan     map[Purchase]Rate `json:"plan"`
	} `json:"componentsOfThePlan"`
}

// ReadExisting reads the machines of an existing cluster. Errors are one line and name the field.
func ReadExisting(path string) (*Existing, error) {
	e := &Existing{}
	err := readYAML(path, e)
	if err == nil {
		err = e.validate()
	}
	if err != nil {
		return nil, fmt.Errorf("existing cluster %s: %w", path, err)
	}
	return e, nil
}

func (e *Existing) validate() error {
	switch {
	case e.Name == "":
		return fmt.Errorf("name: missing; name the cluster")
	case len(e.Machines) == 0:
		return fmt.Errorf("machines: missing; list at least one")
	}
	for i, m := range e.Machines {
		switch path := fmt.Sprintf("machines[%d]", i); {
		case m.Component == "":
			return fmt.Errorf("%s.component: missing; say what the machines are for", path)
		case m.Type == "":
			return fmt.Errorf("%s.type: missing; name the machine type", path)
		case m.Count < 1:
			return fmt.Errorf("%s.count: %d; must be 1 or more", path, m.Count)
		}
	}
	return nil
}

// Compare prices an existing cluster with the price list of a report, and adds the comparison to the report.
func (r *Report) Compare(list *List, e *Existing) error {
	c := &Comparison{Name: e.Name, Source: e.Source, Reported: e.Reported}
	for i, m := range e.Machines {
		machine, found := list.Find(m.Type)
		if !found {
			return fmt.Errorf("existing cluster %s: machines[%d].type: %q is not in the price list of %s; choose from %s",
				e.Name, i, m.Type, list.Provider, strings.Join(list.Types(), ", "))
		}
		c.Items = append(c.Items, group{machine, m.Count}.item(m.Component))
	}
	c.Total = total(c.Items)
	shared := func(items []Item, others []Item) map[Purchase]Rate {
		return total(slices.DeleteFunc(slices.Clone(items), func(item Item) bool {
			return item.Unit != unitMachines || !slices.ContainsFunc(others, func(o Item) bool { return o.Component == item.Component })
		}))
	}
	c.Planned.Existing, c.Planned.Plan = shared(c.Items, r.Items), shared(r.Items, c.Items)
	r.Existing = c
	return nil
}
