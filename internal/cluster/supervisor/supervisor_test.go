package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// fixture is a running supervisor whose components are idle processes.
type fixture struct {
	dir        clusterdir.Dir
	parentPipe *io.PipeWriter
	ended      chan error
}

// run starts a supervisor, which stops at the end of the test because its parent pipe is closed.
func run(t *testing.T, components ...component.Component) *fixture {
	t.Helper()
	t.Setenv("K1M_HOME", t.TempDir())
	dir, err := clusterdir.NewDir("test")
	if err == nil {
		err = dir.Create()
	}
	if err != nil {
		t.Fatal(err)
	}
	address := testcluster.FreeAddress(t)
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

// patience bounds what takes seconds on a machine without other work.
const patience = 3 * time.Minute

// await waits until a condition of the supervisor's state holds, and returns the state.
func (f *fixture) await(t *testing.T, condition string, holds func(State) bool) State {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		state, err := ReadState(f.dir)
		if err == nil && holds(state) {
			return state
		}
		if time.Now().After(deadline) {
			t.Fatalf("timed out after %v waiting until %s: state %+v, error %v", patience, condition, state, err)
		}
	}
}

// sleeper returns a component that only sleeps and whose readiness probe succeeds.
func sleeper(t *testing.T, name string, dependsOn ...string) component.Component {
	t.Helper()
	healthy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(healthy.Close)
	return component.Component{
		Name: name, Binary: "/bin/sleep", Args: []string{"600"}, DependsOn: dependsOn,
		Ready: component.Probe{URL: healthy.URL}, StopGrace: time.Second,
	}
}

func TestDeadComponentIsRestarted(t *testing.T) {
	f := run(t, sleeper(t, "store"), sleeper(t, "server", "store"))
	before := f.await(t, "all components are healthy", State.Healthy)
	if err := before.Components[0].Process.KillGroup(); err != nil {
		t.Fatal(err)
	}
	after := f.await(t, "the store is restarted", func(s State) bool { return s.Healthy() && s.Components[0].Restarts == 1 })
	if after.Components[0].Process == before.Components[0].Process || after.Components[0].LastExit != "signal: killed" {
		t.Errorf("store after it was killed = %+v, want another process and the exit %q", after.Components[0], "signal: killed")
	}
	if after.Components[1].Process != before.Components[1].Process {
		t.Errorf("process of the other component = %+v, want %+v as before", after.Components[1].Process, before.Components[1].Process)
	}
}

func TestSupervisorWithoutParentStopsComponents(t *testing.T) {
	f := run(t, sleeper(t, "store"))
	state := f.await(t, "all components are healthy", State.Healthy)
	f.parentPipe.Close()
	if err := <-f.ended; err != nil {
		t.Fatalf("Run() after the parent pipe was closed = %v, want nil", err)
	}
	if state.Components[0].Process.Alive() {
		t.Error("the component is alive after its supervisor has ended")
	}
	if _, err := os.Stat(f.dir.StateFile()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat() of the state file = %v, want %v", err, os.ErrNotExist)
	}
}

func TestDetachedSupervisorKeepsRunning(t *testing.T) {
	f := run(t, sleeper(t, "store"))
	f.await(t, "all components are healthy", State.Healthy)
	if err := Detach(f.parentPipe); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-f.ended:
		t.Fatalf("Run() returned %v after Detach(), want it running", err)
	case <-time.After(200 * time.Millisecond):
	}
}

func TestDependentsWaitAndMetricsReportReadiness(t *testing.T) {
	unready := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintln(w, "[+]ping ok\n[-]poststarthook/x failed: reason withheld\nnot ready")
	}))
	defer unready.Close()
	store := sleeper(t, "store")
	store.Ready.URL = unready.URL
	f := run(t, store, sleeper(t, "server", "store"))
	state := f.await(t, "the store reports trouble", func(s State) bool { return s.Components[0].NotReadyReason != "" })
	if want := "readiness probe returned 500 Internal Server Error, failed: poststarthook/x"; state.Components[0].NotReadyReason != want {
		t.Errorf("trouble of the store = %q, want %q", state.Components[0].NotReadyReason, want)
	}
	if phase := state.Components[1].Phase; phase != Waiting {
		t.Errorf("phase of the dependent component = %s, want %s", phase, Waiting)
	}
	wantMetric := `k1m_component_ready{component="store"} 0`
	if body := get(t, state.Address+"/metrics"); !strings.Contains(body, wantMetric) {
		t.Errorf("/metrics returned\n%s\nwant %s in it", body, wantMetric)
	}
	wantHealth := "store: starting\nserver: waiting\n"
	if body := get(t, state.Address+"/healthz"); body != wantHealth {
		t.Errorf("/healthz returned %q, want %q", body, wantHealth)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
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

// TestVolatileStoreRestartsAllOtherComponents also checks that other stores keep running: they would lose their state.
func TestVolatileStoreRestartsAllOtherComponents(t *testing.T) {
	store, own := sleeper(t, "store"), sleeper(t, "store-pods")
	store.Volatile, own.Volatile = true, true
	f := run(t, store, own, sleeper(t, "server", "store", "store-pods"))
	before := f.await(t, "all components are healthy", State.Healthy)
	if err := before.Components[0].Process.KillGroup(); err != nil {
		t.Fatal(err)
	}
	f.await(t, "all components are restarted", func(s State) bool {
		return s.Healthy() && s.Components[0].Restarts == 1 && s.Components[2].Restarts == 1
	})
	if after := f.await(t, "all components are healthy", State.Healthy).Components[1]; after.Process != before.Components[1].Process || after.Exits > 0 {
		t.Errorf("the other store is %+v after the restart, want the process %+v", after, before.Components[1].Process)
	}
}
