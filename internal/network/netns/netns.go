// Package netns creates Linux network namespaces and the links, addresses and routes in them, and runs functions and
// programs inside.
//
// Namespaces have names below /run/netns, as those of `ip netns`, so that they outlive this process and
// `ip netns exec NAME` enters them. All functions need the capabilities NET_ADMIN and SYS_ADMIN; [Check] reports whether
// this process has them. A namespace belongs to a thread, not to a process, so code that shall run inside one is given to
// [Namespace.Do], which holds a thread for it.
package netns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Directory has the files of named namespaces.
const Directory = "/run/netns"

// Namespace is a network namespace. Its methods may be called by several goroutines.
type Namespace struct {
	name string
	fd   netns.NsHandle

	mu    sync.Mutex
	links *netlink.Handle // opened by the first call of Links
}

// Check returns nil if this process may create namespaces, otherwise an error with the reason.
func Check() error {
	name := "k1m-check-" + strconv.Itoa(os.Getpid())
	n, err := Create(name)
	if err != nil {
		return fmt.Errorf("network namespaces cannot be created: %w; run as root", err)
	}
	return n.Delete()
}

// Create creates a namespace with a name. Its loopback interface is up.
func Create(name string) (*Namespace, error) {
	if err := validateName(name); err != nil {
		return nil, err
	}
	if err := shareOnce(); err != nil {
		return nil, fmt.Errorf("create network namespace %s: %w", name, err)
	}
	var fd netns.NsHandle
	// netns.NewNamed leaves its thread in the new namespace.
	err := onThread(func() (err error) {
		fd, err = netns.NewNamed(name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create network namespace %s: %w", name, err)
	}
	n := &Namespace{name: name, fd: fd}
	if err := n.Up("lo"); err != nil {
		return nil, errors.Join(err, n.Delete())
	}
	return n, nil
}

// shareOnce calls shareDirectory once in a process: it visits all namespaces that are mounted.
var shareOnce = sync.OnceValue(shareDirectory)

// shareDirectory makes the directory of the namespaces a shared mount point, as the program ip does when it first adds a
// namespace. If ip did so later, it would mount all existing namespaces a second time, and their files could not be removed.
func shareDirectory() error {
	if err := os.MkdirAll(Directory, 0o755); err != nil {
		return err
	}
	share := func() error { return unix.Mount("", Directory, "none", unix.MS_SHARED|unix.MS_REC, "") }
	err := share()
	if errors.Is(err, unix.EINVAL) { // it is not a mount point
		err = unix.Mount(Directory, Directory, "none", unix.MS_BIND|unix.MS_REC, "")
		if err == nil {
			err = share()
		}
	}
	if err != nil {
		return fmt.Errorf("make %s a shared mount point: %w", Directory, err)
	}
	return nil
}

// Open opens the namespace with a name.
func Open(name string) (*Namespace, error) {
	if err := validateName(name); err != nil {
		return nil, err
	}
	fd, err := netns.GetFromName(name)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", name, err)
	}
	return &Namespace{name: name, fd: fd}, nil
}

// Current returns the namespace of this process. It has no name, and cannot be deleted.
func Current() (*Namespace, error) {
	fd, err := netns.GetFromPath("/proc/self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open the network namespace of this process: %w", err)
	}
	return &Namespace{fd: fd}, nil
}

// List returns the names of all namespaces that begin with a prefix, sorted.
func List(prefix string) (names []string, err error) {
	entries, err := os.ReadDir(Directory)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			names = append(names, entry.Name())
		}
	}
	slices.Sort(names)
	return names, err
}

func validateName(name string) error {
	if name == "" || strings.ContainsAny(name, "/\x00") || name == "." || name == ".." {
		return fmt.Errorf("%q is not a name of a network namespace", name)
	}
	return nil
}

// Name returns the name; empty for that of the process.
func (n *Namespace) Name() string { return n.name }

// Path returns the file of the namespace.
func (n *Namespace) Path() string {
	if n.name == "" {
		return "/proc/self/ns/net"
	}
	return filepath.Join(Directory, n.name)
}

// Close closes the handles of this process. The namespace stays.
func (n *Namespace) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.links != nil {
		n.links.Close()
		n.links = nil
	}
	if !n.fd.IsOpen() {
		return nil
	}
	return n.fd.Close()
}

// Delete removes the name. The kernel removes the namespace with its links when no process is left in it.
func (n *Namespace) Delete() error {
	err := n.Close()
	if n.name == "" {
		return errors.Join(err, errors.New("the network namespace of this process cannot be deleted"))
	}
	return errors.Join(err, Delete(n.name))
}

// Delete removes the name of a namespace. It is not an error if there is none.
func Delete(name string) error {
	if err := validateName(name); err != nil {
		return err
	}
	path := filepath.Join(Directory, name)
	// EINVAL: the file is not a mount point, which an interrupted Create leaves behind.
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("delete network namespace %s: %w", name, err)
	}
	return nil
}

// Do calls a function on a thread in the namespace, and returns its error. Sockets that the function opens, and programs
// that it starts, stay in the namespace. Goroutines that it starts do not run there. The function runs on another
// goroutine than the caller, so a test must not call FailNow in it.
func (n *Namespace) Do(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(n.fd); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", n.name, err)
		}
		return f()
	})
}

// onThread calls a function on a thread of its own, and puts the thread back into the namespace in which it was.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		before, err := netns.Get()
		if err != nil {
			result <- err
			return
		}
		err = f()
		// A thread that is not back stays locked, and ends with this goroutine.
		if netns.Set(before) == nil {
			runtime.UnlockOSThread()
		}
		_ = before.Close()
		result <- err
	}()
	return <-result
}

// Start starts a program in the namespace. The program must not have a Pdeathsig: the kernel sends it when the thread
// ends that has started the program.
func (n *Namespace) Start(cmd *exec.Cmd) error { return n.Do(cmd.Start) }

// Run runs a program in the namespace and returns what it printed. The error contains this, too.
func (n *Namespace) Run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	err := n.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("%s in %s: %w: %s", strings.Join(cmd.Args, " "), n.name, err, strings.TrimSpace(output.String()))
	}
	return output.String(), err
}

// BridgeNetfilter is the kernel parameter that passes IPv6 in frames of bridges to the filters of IP. Only kernels with the module
// br_netfilter have it, and there it is 1 by default.
const BridgeNetfilter = "bridge/bridge-nf-call-ip6tables"

// Sysctl sets a kernel parameter of the namespace. The key is the path below /proc/sys/net, such as
// ipv6/conf/all/forwarding.
func (n *Namespace) Sysctl(key, value string) error {
	return n.Do(func() error { return SetSysctl(key, value) })
}

// SetSysctl sets a kernel parameter in the namespace of the calling thread.
func SetSysctl(key, value string) error {
	if err := os.WriteFile(filepath.Join("/proc/sys/net", key), []byte(value), 0o644); err != nil {
		return fmt.Errorf("set net/%s to %s: %w", key, value, err)
	}
	return nil
}

// ReadSysctl returns a kernel parameter of the namespace.
func (n *Namespace) ReadSysctl(key string) (value string, err error) {
	err = n.Do(func() error {
		content, err := os.ReadFile(filepath.Join("/proc/sys/net", key))
		value = strings.TrimSpace(string(content))
		return err
	})
	return value, err
}
