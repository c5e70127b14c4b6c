package storeserver

import "testing"

func TestCoresAreSplit(t *testing.T) {
	for cores, want := range map[int][2]string{1: {"0", "0"}, 2: {"0", "1"}, 5: {"0-1", "2-4"}, 8: {"0-3", "4-7"}} {
		if server, clients := SplitCores(cores); server != want[0] || clients != want[1] {
			t.Errorf("SplitCores(%d) returned %s and %s, want %s and %s", cores, server, clients, want[0], want[1])
		}
	}
}
