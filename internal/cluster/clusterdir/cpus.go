package clusterdir

import (
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// As taskset and the kernel write sets of CPUs.
var (
	cpuList   = regexp.MustCompile(`^\d+(-\d+)?(,\d+(-\d+)?)*$`)
	cpuNumber = regexp.MustCompile(`\d+`)
)

// AnyScheduler are those of a cluster, whichever program they are.
const AnyScheduler = "scheduler"

// CPUsOf are those on which a process may run that has one of these names, its own and
// those that it shares with others; empty for all of them. Of several entries the last one
// counts, as with flags elsewhere.
func (s *Settings) CPUsOf(names ...string) string {
	for _, entry := range slices.Backward(s.CPUs) {
		if name, cpus, _ := strings.Cut(entry, "="); slices.Contains(names, name) {
			return cpus
		}
	}
	return ""
}

func (s *Settings) validateCPUs() error {
	known := s.processNames()
	for _, entry := range s.CPUs {
		name, cpus, _ := strings.Cut(entry, "=")
		if !slices.Contains(known, name) {
			return usage.Errorf("--cpus %q: this cluster has no such process; choose of %s", entry, strings.Join(known, ", "))
		}
		if !cpuList.MatchString(cpus) {
			return usage.Errorf("--cpus %q: not a set of CPUs; write it like %s=0-3,8", entry, name)
		}
		for _, cpu := range cpuNumber.FindAllString(cpus, -1) {
			if n, err := strconv.Atoi(cpu); err != nil || n >= runtime.NumCPU() {
				return usage.Errorf("--cpus %q: there is no CPU %s; this machine has 0 to %d", entry, cpu, runtime.NumCPU()-1)
			}
		}
	}
	return nil
}

// processNames are all that CPUs can be given to: processes, and what all schedulers are
// called.
func (s *Settings) processNames() []string {
	names := append(s.processes(), AnyScheduler)
	slices.Sort(names)
	return names
}
