package storemembers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// Member is one member of a cluster. Its methods are for one goroutine.
type Member struct {
	Name               string
	ClientURL, PeerURL string

	cluster *Cluster
	site    Site
	disk    string // directory of the data directory
	// joins is true if the member was added to an existing cluster.
	joins bool

	cmd    *exec.Cmd
	ended  chan struct{} // closed when the process has ended
	paused bool
}

func newMember(c *Cluster, i int) (*Member, error) {
	site, client, peer, err := c.options.site(i)
	if err != nil {
		return nil, err
	}
	disk := c.options.Dir
	if len(c.options.Disks) > 0 {
		disk = c.options.Disks[i]
	}
	scheme := "http"
	if c.options.PeerTLS.CA != "" {
		scheme = "https"
	}
	return &Member{
		Name: fmt.Sprintf("store-%d", i+1), cluster: c, site: site, disk: disk,
		ClientURL: "http://" + address(site.Host, client), PeerURL: scheme + "://" + address(site.Host, peer),
	}, nil
}

// Start starts the process of a member that does not run. It does not wait until the member serves.
func (m *Member) Start() error {
	log, err := os.OpenFile(m.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	line := append(append([]string{}, m.site.Prefix...), m.cluster.options.Program)
	line = append(line, m.args()...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	// The member ends if this process is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	ended := make(chan struct{})
	if err := startAndWait(cmd, ended); err != nil {
		return fmt.Errorf("starting %s: %w", m.Name, err)
	}
	m.cmd, m.ended, m.paused = cmd, ended, false
	return nil
}

// Kill ends the process as a crash would, and waits for its end. It does nothing if the process does not run.
func (m *Member) Kill() { m.end(syscall.SIGKILL) }

// Stop sends SIGTERM and waits for the end of the process. It kills the process if it has not ended after a minute, and
// then returns an error.
func (m *Member) Stop() error {
	if m.cmd == nil {
		return nil
	}
	m.signal(syscall.SIGTERM)
	select {
	case <-m.ended:
		return nil
	case <-time.After(stopTimeout):
		m.Kill()
		return fmt.Errorf("%s had not ended %v after SIGTERM; its log is %s", m.Name, stopTimeout, m.LogFile())
	}
}

const stopTimeout = time.Minute

func (m *Member) end(signal syscall.Signal) {
	if m.cmd == nil {
		return
	}
	m.signal(signal)
	<-m.ended
}

// Terminate sends SIGTERM and does not wait.
func (m *Member) Terminate() { m.signal(syscall.SIGTERM) }

// Pause suspends the process (SIGSTOP), and Resume continues it.
func (m *Member) Pause() { m.signal(syscall.SIGSTOP); m.paused = true }

// Resume continues a suspended process (SIGCONT).
func (m *Member) Resume() { m.signal(syscall.SIGCONT); m.paused = false }

// signal sends a signal. An error means that the process has ended.
func (m *Member) signal(signal syscall.Signal) { _ = m.cmd.Process.Signal(signal) }

// Running reports whether the member has a process that has not ended.
func (m *Member) Running() bool {
	if m.cmd == nil {
		return false
	}
	select {
	case <-m.ended:
		return false
	default:
		return true
	}
}

// CPU returns the CPU time of the process.
func (m *Member) CPU() (time.Duration, error) { return process.CPUTime(m.cmd.Process.Pid) }

// PID returns the process ID.
func (m *Member) PID() int { return m.cmd.Process.Pid }

// LogFile returns the path of the log of the member.
func (m *Member) LogFile() string { return filepath.Join(m.cluster.options.Dir, m.Name+".log") }

func (m *Member) dataDir() string { return filepath.Join(m.disk, m.Name) }
