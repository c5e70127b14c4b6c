package price

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/cluster/plan"
)

// components are the components that a plan has machines for.
var components = []string{plan.Store, plan.APIServer, plan.Gateway, plan.Scheduler}

var currencyCode = regexp.MustCompile(`^[A-Z]{3}$`)

// validate returns an error that names the first invalid field.
func (l *List) validate() error {
	switch {
	case l.Provider == "":
		return fmt.Errorf("provider: missing; name the provider")
	case !currencyCode.MatchString(l.Currency):
		return fmt.Errorf("currency: %q is not a currency code; use three capital letters such as USD", l.Currency)
	case l.Date.IsZero():
		return fmt.Errorf("date: missing; say on which day the prices were valid, as 2026-07-30")
	case l.Source == "":
		return fmt.Errorf("source: missing; say where the prices were read")
	case len(l.Machines) == 0:
		return fmt.Errorf("machines: missing; list at least one machine type")
	}
	for i := range l.Machines {
		path := fmt.Sprintf("machines[%d]", i)
		if err := l.Machines[i].validate(path); err != nil {
			return err
		}
		if first := slices.Index(l.Types(), l.Machines[i].Type); first < i {
			return fmt.Errorf("%s.type: %q is also the type of machines[%d]; remove one of them", path, l.Machines[i].Type, first)
		}
	}
	if l.Disk != nil && (l.Disk.Kind == "" || l.Disk.GiBMonth < 0) {
		return fmt.Errorf("disk: needs a kind, and a perGiBMonth of 0 or more")
	}
	return l.Traffic.validate()
}

func (m *Machine) validate(path string) error {
	switch {
	case m.Type == "":
		return fmt.Errorf("%s.type: missing; name the machine type", path)
	case !(m.Cores > 0):
		return fmt.Errorf("%s.cores: %v; must be more than 0", path, m.Cores)
	case !(m.Memory > 0):
		return fmt.Errorf("%s.memoryGiB: %v; must be more than 0", path, m.Memory)
	case m.Disk < 0:
		return fmt.Errorf("%s.diskGiB: %v; must be 0 or more", path, m.Disk)
	case m.Traffic < 0:
		return fmt.Errorf("%s.trafficGiB: %v; must be 0 or more", path, m.Traffic)
	case len(m.Prices) == 0:
		return fmt.Errorf("%s.prices: missing; give at least one of %s", path, purchaseNames())
	}
	for i, name := range m.For {
		if !slices.Contains(components, name) {
			return fmt.Errorf("%s.for[%d]: %q is no component; choose from %s", path, i, name, strings.Join(components, ", "))
		}
	}
	for _, purchase := range slices.Sorted(maps.Keys(m.Prices)) {
		rate := m.Prices[purchase]
		field := fmt.Sprintf("%s.prices.%s", path, purchase)
		switch {
		case !slices.Contains(Purchases, purchase):
			return fmt.Errorf("%s: no such purchase; choose from %s", field, purchaseNames())
		case rate.Hour < 0 || rate.Month < 0:
			return fmt.Errorf("%s: a price is negative", field)
		case rate == Rate{}:
			return fmt.Errorf("%s: has no price; give hour or month", field)
		}
	}
	return nil
}

func (t *Traffic) validate() error {
	if t == nil {
		return nil
	}
	if t.Zone != nil && *t.Zone < 0 {
		return fmt.Errorf("traffic.zone: %v; must be 0 or more", *t.Zone)
	}
	if t.Zones != nil && *t.Zones < 0 {
		return fmt.Errorf("traffic.zones: %v; must be 0 or more", *t.Zones)
	}
	end := 0.0
	for i, tier := range t.Internet {
		path, last := fmt.Sprintf("traffic.internet[%d]", i), i == len(t.Internet)-1
		switch {
		case tier.GiB < 0:
			return fmt.Errorf("%s.perGiB: %v; must be 0 or more", path, tier.GiB)
		case last && tier.UpToGiB != 0:
			return fmt.Errorf("%s.upToGiB: the last tier has no end; remove the field", path)
		case !last && tier.UpToGiB <= end:
			return fmt.Errorf("%s.upToGiB: %v; must be more than %v, the end of the tier before", path, tier.UpToGiB, end)
		}
		end = tier.UpToGiB
	}
	return nil
}

// purchaseNames returns the names of all ways to pay, for messages.
func purchaseNames() string {
	var names []string
	for _, p := range Purchases {
		names = append(names, string(p))
	}
	return strings.Join(names, ", ")
}
