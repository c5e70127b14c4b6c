package realcluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func TestInvalidIntakeOptionsAreUsageErrors(t *testing.T) {
	for name, change := range map[string]func(*IntakeOptions){
		"intake":   func(o *IntakeOptions) { o.Intakes = []string{"both"} },
		"twice":    func(o *IntakeOptions) { o.Intakes = []string{clusterdir.IntakeWatch, clusterdir.IntakeWatch} },
		"none":     func(o *IntakeOptions) { o.Intakes = nil },
		"no rates": func(o *IntakeOptions) { o.Rates = nil },
		"falling":  func(o *IntakeOptions) { o.Rates = []int{200, 100} },
		"zero":     func(o *IntakeOptions) { o.Rates = []int{0} },
		"short":    func(o *IntakeOptions) { o.Duration = time.Millisecond },
		"full":     func(o *IntakeOptions) { o.Cluster.Nodes = 10 },
		"timeout":  func(o *IntakeOptions) { o.Timeout = 0 },
		"store":    func(o *IntakeOptions) { o.Cluster.Store = "x" },
	} {
		o := DefaultIntakeOptions()
		change(&o)
		if err := o.Validate(); !errors.Is(err, usage.Err) {
			t.Errorf("with invalid options (%s), Validate returned %v, not a usage error", name, err)
		}
	}
	if o := DefaultIntakeOptions(); o.Validate() != nil {
		t.Errorf("the default options are invalid: %v", o.Validate())
	}
}

func TestClusterFlagsSelectTheIntake(t *testing.T) {
	o := DefaultIntakeOptions()
	flags, err := o.clusterFlags(clusterdir.IntakeWebhook)
	if err != nil {
		t.Fatal(err)
	}
	got, err := clusterdir.Overlay(clusterdir.DefaultSettings(), flags)
	if err != nil || got.Validate() != nil {
		t.Fatal(err, got.Validate())
	}
	if got.SchedulerIntake != clusterdir.IntakeWebhook || got.Scheduler != clusterdir.SchedulerDist || len(got.SchedulerArgs) != 1 {
		t.Errorf("the settings are %+v; want dist-scheduler with the intake webhook and one argument", got)
	}
}

// TestLogReader reads a log while complete and partial lines are written to it.
func TestLogReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	write := func(text string) {
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	takenInLine := func(pod, source string, micros int) string {
		return fmt.Sprintf("I1122 10:00:00.000001 7 intake_metrics.go:9] \"Pod added to the scheduling queue\" pod=%q source=%q unixMicros=%d\n", pod, source, micros)
	}
	write(takenInLine("bench/at-5-000000", "watch", 1))
	s, err := openLog(path, "bench", "at-5-")
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	line := takenInLine("bench/at-5-000001", "webhook", 2_000_001)
	write(line[:30])
	if err := s.read(); err != nil || len(s.seen) != 0 {
		t.Fatalf("after a partial line, the log reader has seen %v; error: %v", s.seen, err)
	}
	write(line[30:] + takenInLine("bench/at-5-000001", "watch", 9) + takenInLine("bench/at-50-000001", "watch", 9) + takenInLine("other/at-5-000002", "watch", 9))
	write("I1122 10:00:03.000500 7 schedule_one.go:9] \"Successfully bound pod to node\" pod=\"bench/at-5-000001\" node=\"n\"\n")
	if err := s.read(); err != nil {
		t.Fatal(err)
	}
	write("I1122 10:00:04.000500       7 eventhandlers.go:242] \"Add event for unscheduled pod\" pod=\"bench/at-5-000003\"\n" +
		"I1122 10:00:04.000600       7 eventhandlers.go:242] \"Add event for unscheduled pod\" pod=\"bench/at-5-000001\"\n")
	if err := s.read(); err != nil {
		t.Fatal(err)
	}
	if watched := s.seen["at-5-000003"]; watched.source != "watch" || watched.at.Second() != 4 {
		t.Errorf("the pod that the event handler logged is recorded as %v", watched)
	}
	delete(s.seen, "at-5-000003")
	if len(s.seen) != 1 || s.seen["at-5-000001"] != (arrival{"webhook", time.UnixMicro(2_000_001)}) || len(s.bound) != 1 {
		t.Errorf("the log reader has seen %v and %v as bound; want the measured pod only, by webhook", s.seen, s.bound)
	}
}

// TestPatternsMatchKlog checks that the patterns match lines that klog writes.
func TestPatternsMatchKlog(t *testing.T) {
	var out strings.Builder
	klog.LogToStderr(false)
	klog.SetOutput(&out)
	klog.InfoS("Pod added to the scheduling queue", "pod", klog.KRef("bench", "at-5-000001"), "source", "watch", "unixMicros", time.Now().UnixMicro())
	klog.InfoS("Successfully bound pod to node", "pod", klog.KRef("bench", "at-5-000001"), "node", "n")
	klog.Flush()
	klog.LogToStderr(true)
	s := &logReader{prefix: "bench/at-5-", seen: map[string]arrival{}, bound: map[string]time.Time{}}
	for line := range strings.Lines(out.String()) {
		s.addLine(line)
	}
	seen, bound := s.seen["at-5-000001"].at, s.bound["at-5-000001"]
	if time.Since(seen).Abs() > time.Minute || time.Since(bound).Abs() > time.Minute {
		t.Errorf("the log %q was read as seen at %v and bound at %v; want about now", out.String(), seen, bound)
	}
}

func TestLogTimeOfLastYear(t *testing.T) {
	now := time.Date(2027, 1, 1, 0, 0, 1, 0, time.Local)
	got, err := parseLogTime("1231 23:59:59.000001", now)
	if want := time.Date(2026, 12, 31, 23, 59, 59, 1000, time.Local); err != nil || !got.Equal(want) {
		t.Errorf("parseLogTime returned %v, %v; want %v", got, err, want)
	}
}

func TestRateIsSummarized(t *testing.T) {
	start := time.Unix(100, 0)
	m := newCreations(3)
	s := &logReader{seen: map[string]arrival{}, bound: map[string]time.Time{}}
	for i, name := range []string{"a", "b", "c"} {
		sent := start.Add(time.Duration(i) * time.Second)
		m.add(name, sent, sent.Add(20*time.Millisecond))
		s.seen[name] = arrival{clusterdir.IntakeWatch, sent.Add(10 * time.Millisecond)}
		s.bound[name] = sent.Add(50 * time.Millisecond)
	}
	s.seen["b"] = arrival{clusterdir.IntakeWebhook, start.Add(time.Second + time.Millisecond)}
	delete(s.bound, "c")
	var before, after used
	after.apiServers.CPU = 30 * time.Millisecond
	got := summarizeRate(2, m, s, before, after)
	if got.Created != 3 || got.Seen != 3 || got.Bound != 2 || got.ByWebhook != 1 || got.APIServerCPUMicrosPerPod != 10_000 {
		t.Errorf("the result is %+v; want 3 pods created and seen, 2 bound, 1 by webhook, and 10,000 µs of CPU per pod",
			got)
	}
	near := func(have, want float64) bool { return have > want*0.99 && have < want*1.01 }
	if !near(got.SeenMillis.P50, 10) || !near(got.SeenMillis.Max, 10) || !near(got.BoundMillis.P99, 50) || !near(got.CreateMillis.P50, 20) || !near(got.CreatedPerSecond, 3/2.02) {
		t.Errorf("the latencies or the rate of %+v are wrong", got)
	}
	result := IntakeResult{Intakes: []IntakeMeasured{{Name: "watch", Rates: []IntakeRate{got}}}}
	want := "intake watch at 2/s: 1 of 3 pods were not seen or not bound; repeat the run with --keep and read the log of the scheduler"
	if err := result.Err(); err == nil || err.Error() != want {
		t.Errorf("Err returned %v, want %q", err, want)
	}
	if _, err := json.Marshal(result); err != nil {
		t.Error(err)
	}
}
