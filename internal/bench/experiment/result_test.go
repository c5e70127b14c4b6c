package experiment

import (
	"slices"
	"testing"
)

func TestLastRowOfATable(t *testing.T) {
	r := &Result{}
	table := r.Table("title", "store", "calls", "p99, ms", "p99, ms")
	table.Add("etcd", 1, 2.0, 3.0)
	table.Add("etcd", 4, 5.0, 6.0)
	table.Add("mem_etcd", 7, 8.0, 9.0)
	if cells, found := table.Last("etcd", "calls", "p99, ms"); !found || !slices.Equal(cells, []any{4, 6.0}) {
		t.Errorf("the last row has %v", cells)
	}
	for _, c := range [][]any{{"other", "calls"}, {"etcd", "p50, ms"}} {
		if cells, found := table.Last(c[0], c[1].(string)); found {
			t.Errorf("%v has %v, want nothing", c, cells)
		}
	}
}
