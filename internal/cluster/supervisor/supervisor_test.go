package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

// fixture is a running supervisor whose components are idle processes.
type fixture struct {
	dir        clusterdir.Dir
	parentPipe *io.PipeWriter
	ended      chan error // receives the result of Run
}

func startSupervisor(t *testing.T, components ...component.Component) *fixture {
	t.Helper()
	t.Setenv("K1M_HOME", t.TempDir())
	dir, err := clusterdir.NewDir("test")
	if err == nil {
		err = dir.Create()
	}
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	reader, writer := io.Pipe()
	f := &fixture{dir: dir, parentPipe: writer, ended: make(chan error, 1)}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		f.ended <- Run(t.Context(), Options{
			Dir: dir, Components: components, Address: address, ParentPipe: reader, Log: slog.New(slog.DiscardHandler),
		})
	}()
	t.Cleanup(func() {
		writer.Close()
		<-stopped
	})
	return f
}

// await waits until the state file fulfils a condition. what describes the condition.
func (f *fixture) await(t *testing.T, what string, done func(State) bool) State {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		state, err := ReadState(f.dir)
		if err == nil && done(state) {
			return state
		}
		if time.Now().After(deadline) {
			t.Fatalf("after 20 s the components are not %s: state %+v, error %v", what, state, err)
		}
	}
}

// sleeper returns a component that runs sleep and whose readiness probe succeeds.
func sleeper(t *testing.T, name string, dependsOn ...string) component.Component {
	t.Helper()
	healthy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(healthy.Close)
	return component.Component{
		Name: name, Binary: "/bin/sleep", Args: []string{"600"}, DependsOn: dependsOn,
		Ready: component.Probe{URL: healthy.URL}, StopGrace: time.Second,
	}
}

func TestExitedComponentIsRestarted(t *testing.T) {
	f := startSupervisor(t, sleeper(t, "store"), sleeper(t, "server", "store"))
	before := f.await(t, "healthy", State.Healthy)
	if err := before.Components[0].Process.KillGroup(); err != nil {
		t.Fatal(err)
	}
	after := f.await(t, "restarted", func(s State) bool { return s.Healthy() && s.Components[0].Restarts == 1 })
	if after.Components[0].Process == before.Components[0].Process || after.Components[0].LastExit != "signal: killed" {
		t.Errorf("state of the killed component after its restart: %+v", after.Components[0])
	}
	if after.Components[1].Process != before.Components[1].Process {
		t.Error("a component that was not killed was restarted too")
	}
}

func TestAbandonedSupervisorStopsEverything(t *testing.T) {
	f := startSupervisor(t, sleeper(t, "store"))
	state := f.await(t, "healthy", State.Healthy)
	f.parentPipe.Close()
	if err := <-f.ended; err != nil {
		t.Fatal(err)
	}
	if state.Components[0].Process.Alive() {
		t.Error("the component is still running after the supervisor ended")
	}
	if _, err := os.Stat(f.dir.StateFile()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state file was not removed: %v", err)
	}
}

func TestDetachedSupervisorKeepsRunning(t *testing.T) {
	f := startSupervisor(t, sleeper(t, "store"))
	f.await(t, "healthy", State.Healthy)
	if err := Detach(f.parentPipe); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-f.ended:
		t.Fatalf("the supervisor ended after Detach: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
}

func TestDependentsWaitAndMetricsReportReadiness(t *testing.T) {
	unhealthy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintln(w, "[+]ping ok\n[-]poststarthook/x failed: reason withheld\nnot ready")
	}))
	defer unhealthy.Close()
	store := sleeper(t, "store")
	store.Ready.URL = unhealthy.URL
	f := startSupervisor(t, store, sleeper(t, "server", "store"))
	state := f.await(t, "not ready with a reason", func(s State) bool { return s.Components[0].NotReadyReason != "" })
	if want := "readiness probe returned 500 Internal Server Error, failed: poststarthook/x"; state.Components[0].NotReadyReason != want {
		t.Errorf("the reason is %q, want %q", state.Components[0].NotReadyReason, want)
	}
	if state.Components[1].Phase != Waiting {
		t.Errorf("the phase of the dependent component is %q, want %q", state.Components[1].Phase, Waiting)
	}
	if body := get(t, state.Address+"/metrics"); !strings.Contains(body, `k1m_component_ready{component="store"} 0`) {
		t.Errorf("the metrics do not report the store as not ready:\n%s", body)
	}
	if body := get(t, state.Address+"/healthz"); body != "store: starting\nserver: waiting\n" {
		t.Errorf("/healthz returned %q", body)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestExitOfVolatileComponentRestartsAllComponents(t *testing.T) {
	store := sleeper(t, "store")
	store.Volatile = true
	f := startSupervisor(t, store, sleeper(t, "server", "store"))
	before := f.await(t, "healthy", State.Healthy)
	if err := before.Components[0].Process.KillGroup(); err != nil {
		t.Fatal(err)
	}
	f.await(t, "all restarted", func(s State) bool {
		return s.Healthy() && s.Components[0].Restarts == 1 && s.Components[1].Restarts == 1
	})
}
