package gateway

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
)

// coreLists returns the CPUs of the API server and the store, and those of fronts and clients. Both are
// empty if the machine has one core.
func coreLists(cores int) (servers, clients string) {
	if cores < 2 {
		return "", ""
	}
	return storeserver.SplitCores(cores)
}

// pinClients restricts this process, which generates the load, to the CPUs of the clients. The function
// that it returns removes the restriction.
func pinClients(cores int) (unpin func()) {
	var all, clients unix.CPUSet
	for cpu := range cores {
		all.Set(cpu)
		if cpu >= cores/2 {
			clients.Set(cpu)
		}
	}
	setAffinity(&clients)
	return func() { setAffinity(&all) }
}

// setAffinity restricts all threads of this process. New threads inherit the CPUs of the thread that starts
// them.
func setAffinity(cpus *unix.CPUSet) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			// The thread may have ended.
			_ = unix.SchedSetaffinity(id, cpus)
		}
	}
}
