package store

import (
	"slices"
	"testing"
)

func TestLevelsGrowFourfoldUpToLast(t *testing.T) {
	for last, want := range map[int][]int{256: {1, 4, 16, 64, 256}, 410: {1, 4, 16, 64, 410}, 1: {1}} {
		if got := levels(1, last); !slices.Equal(got, want) {
			t.Errorf("levels(1, %d) = %v, want %v", last, got, want)
		}
	}
}

func TestInvalidOptionsAreUsageErrors(t *testing.T) {
	for _, e := range Experiments() {
		if err := e.New().Validate(); err != nil {
			t.Errorf("Validate() of the default options of %s = %v, want nil", e.Name, err)
		}
	}
	for _, names := range [][]string{{}, {"redis"}, {"etcd", "etcd"}} {
		s := defaultStores(names...)
		if s.Validate() == nil {
			t.Errorf("Validate() with --stores %v succeeded, want an error", names)
		}
	}
}
