package core

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

// simulate runs one seed. A panic is a violation.
func simulate(seed uint64, fault Fault) (s *simulation, err error) {
	s = newSimulation(seed, fault)
	defer func() {
		if recovered := recover(); recovered != nil {
			err = fmt.Errorf("at %v: panic: %v", s.now, recovered)
		}
	}()
	return s, s.run()
}

// environmentNumber returns the number in an environment variable.
func environmentNumber(t *testing.T, name string, otherwise uint64) uint64 {
	value := os.Getenv(name)
	if value == "" {
		return otherwise
	}
	number, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return number
}

// eachSeed runs seeds on all CPUs until a function returns false.
func eachSeed(first, seeds uint64, do func(seed uint64) bool) {
	var next atomic.Uint64
	var stop atomic.Bool
	next.Store(first)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for !stop.Load() {
				seed := next.Add(1) - 1
				if seed >= first+seeds {
					return
				}
				if !do(seed) {
					stop.Store(true)
				}
			}
		})
	}
	workers.Wait()
}

// TestReplicasWithFaultsKeepTheirPromises runs clusters of replicas with faults. SIMULATE_SEEDS is the number of seeds, and
// SIMULATE_FIRST the first one; a failure names its seed.
func TestReplicasWithFaultsKeepTheirPromises(t *testing.T) {
	// The heap is small, and most of it is garbage.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	first, seeds := environmentNumber(t, "SIMULATE_FIRST", 0), environmentNumber(t, "SIMULATE_SEEDS", defaultSeeds)
	var mu sync.Mutex
	var failures []string
	total := simStats{}
	eachSeed(first, seeds, func(seed uint64) bool {
		s, err := simulate(seed, NoFault)
		mu.Lock()
		defer mu.Unlock()
		total.add(&s.stats)
		if err != nil {
			failures = append(failures, formatFailure(seed, err))
		}
		return len(failures) < 20
	})
	t.Logf("%d seeds: %+v", seeds, total)
	for _, failure := range failures {
		t.Error(failure)
	}
	if seeds >= 100 {
		total.check(t)
	}
}

func (s *simStats) add(other *simStats) {
	sum, added := reflect.ValueOf(s).Elem(), reflect.ValueOf(other).Elem()
	for i := range sum.NumField() {
		sum.Field(i).SetInt(sum.Field(i).Int() + added.Field(i).Int())
	}
}

// check checks that the seeds have tested something.
func (s *simStats) check(t *testing.T) {
	counts := reflect.ValueOf(s).Elem()
	for i := range counts.NumField() {
		if counts.Field(i).Int() == 0 {
			t.Errorf("nothing was counted as %s", counts.Type().Field(i).Name)
		}
	}
}

// TestSeedRepeatsItsRun checks that a seed always gives the same run.
func TestSeedRepeatsItsRun(t *testing.T) {
	for seed := range uint64(5) {
		first, _ := simulate(seed, NoFault)
		second, _ := simulate(seed, NoFault)
		if first.trace != second.trace {
			t.Errorf("seed %d gives two different runs", seed)
		}
	}
}

func formatFailure(seed uint64, err error) string { return fmt.Sprintf("seed %d: %v", seed, err) }

// TestPrintRun prints the run of the seed in SIMULATE_PRINT.
func TestPrintRun(t *testing.T) {
	if os.Getenv("SIMULATE_PRINT") == "" {
		t.Skip("SIMULATE_PRINT is not set")
	}
	s := newSimulation(environmentNumber(t, "SIMULATE_PRINT", 0), NoFault)
	start := s.now
	s.record = func(format string, args ...any) { t.Logf("%v "+format, append([]any{s.now.Sub(start)}, args...)...) }
	t.Log(s.run())
}
