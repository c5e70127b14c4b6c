package clusterdir

import (
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

var (
	// cpuList matches the list format of taskset and of the kernel's cpuset files, such as 0-3,8.
	cpuList   = regexp.MustCompile(`^\d+(-\d+)?(,\d+(-\d+)?)*$`)
	cpuNumber = regexp.MustCompile(`\d+`)
)

// AnyScheduler is the name in a --cpus entry that means all schedulers of the cluster, regardless of their
// program.
const AnyScheduler = "scheduler"

// CPUsOf returns the CPU list of a process; empty means all CPUs. names are the name of the process, the
// name of its program and, for a scheduler, [AnyScheduler]. If several --cpus entries match, the last one
// wins, as for repeated flags.
func (s *Settings) CPUsOf(names ...string) string {
	for _, entry := range slices.Backward(s.CPUs) {
		if name, cpus, _ := strings.Cut(entry, "="); slices.Contains(names, name) {
			return cpus
		}
	}
	return ""
}

func (s *Settings) validateCPUs() error {
	valid := s.cpuTargets()
	for _, entry := range s.CPUs {
		name, cpus, _ := strings.Cut(entry, "=")
		if !slices.Contains(valid, name) {
			return usage.Errorf("--cpus %q: this cluster has no such process; choose one of %s", entry, strings.Join(valid, ", "))
		}
		if !cpuList.MatchString(cpus) {
			return usage.Errorf("--cpus %q: not a CPU list; write it like %s=0-3,8", entry, name)
		}
		for _, cpu := range cpuNumber.FindAllString(cpus, -1) {
			if n, err := strconv.Atoi(cpu); err != nil || n >= runtime.NumCPU() {
				return usage.Errorf("--cpus %q: CPU %s does not exist; this machine has CPUs 0 to %d", entry, cpu, runtime.NumCPU()-1)
			}
		}
	}
	return nil
}

// cpuTargets returns the valid names in --cpus entries: those of the components, [AnyScheduler], and [MainStore] for all
// members of the store.
func (s *Settings) cpuTargets() []string {
	names := append(s.componentNames(), AnyScheduler)
	if s.HasStoreReplicas() {
		names = append(names, MainStore)
	}
	slices.Sort(names)
	return names
}
