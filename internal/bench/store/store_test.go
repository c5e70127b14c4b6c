package store

import (
	"slices"
	"testing"
)

func TestPowersOfFour(t *testing.T) {
	if got := powersOfFour(1, 256); !slices.Equal(got, []int{1, 4, 16, 64, 256}) {
		t.Errorf("powersOfFour(1, 256) returned %v", got)
	}
	if got := powersOfFour(1, 410); !slices.Equal(got, []int{1, 4, 16, 64, 410}) {
		t.Errorf("powersOfFour(1, 410) returned %v", got)
	}
	if got := powersOfFour(1, 1); !slices.Equal(got, []int{1}) {
		t.Errorf("powersOfFour(1, 1) returned %v", got)
	}
}

func TestValidateOptions(t *testing.T) {
	for _, e := range Experiments() {
		if err := e.New().Validate(); err != nil {
			t.Errorf("the default options of %s are invalid: %v", e.Name, err)
		}
	}
	for _, names := range [][]string{{}, {"redis"}, {"etcd", "etcd"}} {
		s := defaultStores(names...)
		if s.Validate() == nil {
			t.Errorf("--stores %v was accepted", names)
		}
	}
}
