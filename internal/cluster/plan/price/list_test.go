package price

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const examples = "../../../../deploy/prices/"

// TestShippedListsAreComplete checks that each example says when and where its prices were read.
func TestShippedListsAreComplete(t *testing.T) {
	for _, name := range []string{"google-cloud", "aws", "vultr"} {
		list, err := Read(examples + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list.Machines {
			rate, priced := m.Prices[OnDemand]
			if !priced || rate.Hour <= 0 || rate.Month <= 0 {
				t.Errorf("%s: on-demand price of %s = %+v, want prices of an hour and of a month", name, m.Type, rate)
			}
			// Spot and reserved machines are cheaper than others; a list in which they are not has mistakes.
			for purchase, other := range m.Prices {
				if purchase != OnDemand && other.Month >= rate.Month {
					t.Errorf("%s: %s price of %s = %v a month, want less than %v on demand", name, purchase, m.Type, other.Month, rate.Month)
				}
			}
		}
	}
	if _, err := ReadExisting(examples + "million-node-cluster.yaml"); err != nil {
		t.Error(err)
	}
}

const validList = `provider: P
currency: USD
date: 2026-07-30
source: S
machines:
- type: small
  cores: 4
  memoryGiB: 16
  prices:
    on-demand: {hour: 1}
- type: large
  cores: 64
  memoryGiB: 256
  prices:
    on-demand: {hour: 10, month: 7000}
    spot: {month: 1460}
disk: {kind: ssd, perGiBMonth: 0.1}
traffic:
  zone: 0
  internet:
  - {upToGiB: 1000, perGiB: 0.12}
  - {perGiB: 0.08}
`

func writeList(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "prices.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func readList(t *testing.T, text string) *List {
	t.Helper()
	list, err := Read(writeList(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestMissingPricesOfHoursAndMonthsAreComputed(t *testing.T) {
	list := readList(t, validList)
	if got, want := list.Machines[0].Prices[OnDemand], (Rate{1, 730}); got != want {
		t.Errorf("price with only an hour = %+v, want %+v", got, want)
	}
	if got, want := list.Machines[1].Prices[OnDemand], (Rate{10, 7000}); got != want {
		t.Errorf("price with both = %+v, want %+v", got, want)
	}
	if got, want := list.Machines[1].Prices[Spot], (Rate{2, 1460}); got != want {
		t.Errorf("price with only a month = %+v, want %+v", got, want)
	}
}

// TestErrorsNameTheField checks the errors of wrong files: each is one line with the path of the field.
func TestErrorsNameTheField(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"provider: P\n", "", "provider: missing"},
		{"currency: USD", "currency: dollars", `currency: "dollars" is not a currency code`},
		{"date: 2026-07-30", "date: yesterday", `line 3: date: want a date such as 2026-07-30, found "yesterday"`},
		{"date: 2026-07-30\n", "", "date: missing"},
		{"source: S\n", "", "source: missing"},
		{"source: S", "source: [S]", "line 4: source: want text, found a list"},
		{"cores: 64", "cores: many", `line 12: machines[1].cores: want a number, found "many"`},
		{"cores: 64", `cores: "64"`, `line 12: machines[1].cores: want a number, found "64"`},
		{"cores: 64", "cores: -1", "machines[1].cores: -1; must be more than 0"},
		{"cores: 64", "cores: .nan", "machines[1].cores: want a finite number"},
		{"memoryGiB: 256", "memory: 256", "line 13: machines[1].memory: no such field; choose from type, cores, memoryGiB"},
		{"cores: 64", "cores: 64\n  cores: 32", "machines[1].cores: occurs twice"},
		{"type: large", "type: small", `machines[1].type: "small" is also the type of machines[0]`},
		{"{month: 1460}", "{month: -1}", "machines[1].prices.spot: a price is negative"},
		{"{month: 1460}", "{}", "machines[1].prices.spot: has no price; give hour or month"},
		{"{month: 1460}", "5", `machines[1].prices.spot: want fields, found "5"`},
		{"spot:", "weekly:", "machines[1].prices.weekly: no such purchase; choose from on-demand, spot"},
		{"type: large", "type: large\n  for: [stores]", `machines[1].for[0]: "stores" is no component`},
		{"perGiBMonth: 0.1", "perGiBMonth: -0.1", "disk: needs a kind"},
		{"zone: 0", "zone: -1", "traffic.zone: -1; must be 0 or more"},
		{"{upToGiB: 1000, perGiB: 0.12}", "{perGiB: 0.12}", "traffic.internet[0].upToGiB: 0; must be more than 0"},
		{"{perGiB: 0.08}", "{upToGiB: 2000, perGiB: 0.08}", "traffic.internet[1].upToGiB: the last tier has no end"},
		{"machines:", "machines: {}\nmore:", "line 5: machines: want a list, found fields"},
		{validList, "", "the file is empty"},
		{validList, "a: b: c", "mapping values are not allowed"},
		{validList, "- a", "the file: want fields, found a list"},
	} {
		text := strings.Replace(validList, c.old, c.new, 1)
		if text == validList {
			t.Fatalf("%q is not in the list", c.old)
		}
		_, err := Read(writeList(t, text))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Read() with %q = %v, want one line with %q", c.new, err, c.want)
		}
	}
	if _, err := Read("missing.yaml"); err == nil || !strings.Contains(err.Error(), "missing.yaml") {
		t.Errorf("Read() of a missing file = %v, want an error with its name", err)
	}
}

func TestErrorsOfExistingClustersNameTheField(t *testing.T) {
	valid := "name: N\nmachines:\n- {component: store, type: small, count: 1}\n"
	for _, c := range []struct{ old, new, want string }{
		{"name: N\n", "", "name: missing"},
		{"count: 1", "count: 0", "machines[0].count: 0; must be 1 or more"},
		{"count: 1", "count: 1.5", `machines[0].count: want a whole number, found "1.5"`},
		{"component: store, ", "", "machines[0].component: missing"},
		{"type: small, ", "", "machines[0].type: missing"},
	} {
		if _, err := ReadExisting(writeList(t, strings.Replace(valid, c.old, c.new, 1))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("ReadExisting() with %q = %v, want %q", c.new, err, c.want)
		}
	}
}
