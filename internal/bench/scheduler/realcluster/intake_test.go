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
		"unknown intake":     func(o *IntakeOptions) { o.Intakes = []string{"both"} },
		"intake twice":       func(o *IntakeOptions) { o.Intakes = []string{clusterdir.IntakeWatch, clusterdir.IntakeWatch} },
		"no intake":          func(o *IntakeOptions) { o.Intakes = nil },
		"no rates":           func(o *IntakeOptions) { o.Rates = nil },
		"descending rates":   func(o *IntakeOptions) { o.Rates = []int{200, 100} },
		"rate 0":             func(o *IntakeOptions) { o.Rates = []int{0} },
		"duration too short": func(o *IntakeOptions) { o.Duration = time.Millisecond },
		"more pods than fit": func(o *IntakeOptions) { o.Cluster.Nodes = 10 },
		"timeout 0":          func(o *IntakeOptions) { o.Timeout = 0 },
		"unknown store":      func(o *IntakeOptions) { o.Cluster.Store = "x" },
	} {
		o := DefaultIntakeOptions()
		change(&o)
		if err := o.Validate(); !errors.Is(err, usage.Err) {
			t.Errorf("%s: Validate() = %v, want a usage error", name, err)
		}
	}
	if o := DefaultIntakeOptions(); o.Validate() != nil {
		t.Errorf("Validate() of the default options = %v, want nil", o.Validate())
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
		t.Fatalf("Overlay() = error %v, Validate() = %v, want nil and nil", err, got.Validate())
	}
	if got.SchedulerIntake != clusterdir.IntakeWebhook || got.Scheduler != clusterdir.SchedulerDist || len(got.SchedulerArgs) != 1 {
		t.Errorf("settings = %+v, want dist-scheduler with the webhook intake and one argument", got)
	}
}

// TestSightingsAreReadFromGrowingLog reads a log while complete and partial lines are written to
// it. Lines before the start, of other prefixes and of other namespaces are ignored, and only the
// first sighting of a pod counts.
func TestSightingsAreReadFromGrowingLog(t *testing.T) {
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
	taken := func(pod, source string, micros int) string {
		return fmt.Sprintf("I1122 10:00:00.000001 7 intake_metrics.go:9] \"Pod taken in\" pod=%q source=%q unixMicros=%d\n", pod, source, micros)
	}
	write(taken("bench/at-5-000000", "watch", 1))
	s, err := openSightings(path, "bench", "at-5-")
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	line := taken("bench/at-5-000001", "webhook", 2_000_001)
	write(line[:30])
	if err := s.read(); err != nil || len(s.seen) != 0 {
		t.Fatalf("after a partial line seen = %v, read() = %v, want none and nil", s.seen, err)
	}
	write(line[30:] + taken("bench/at-5-000001", "watch", 9) + taken("bench/at-50-000001", "watch", 9) + taken("other/at-5-000002", "watch", 9))
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
		t.Errorf("sighting of at-5-000003 = %v, want one by the watch in second 4", watched)
	}
	delete(s.seen, "at-5-000003")
	want := sighting{"webhook", time.UnixMicro(2_000_001)}
	if len(s.seen) != 1 || s.seen["at-5-000001"] != want || len(s.bound) != 1 {
		t.Errorf("seen = %v, bound = %v, want only at-5-000001, seen as %v", s.seen, s.bound, want)
	}
}

// TestPatternsMatchLinesOfKlog checks that the patterns match lines that klog writes.
func TestPatternsMatchLinesOfKlog(t *testing.T) {
	var out strings.Builder
	klog.LogToStderr(false)
	klog.SetOutput(&out)
	klog.InfoS("Pod taken in", "pod", klog.KRef("bench", "at-5-000001"), "source", "watch", "unixMicros", time.Now().UnixMicro())
	klog.InfoS("Successfully bound pod to node", "pod", klog.KRef("bench", "at-5-000001"), "node", "n")
	klog.Flush()
	klog.LogToStderr(true)
	s := &sightings{prefix: "bench/at-5-", seen: map[string]sighting{}, bound: map[string]time.Time{}}
	for line := range strings.Lines(out.String()) {
		s.note(line)
	}
	seen, bound := s.seen["at-5-000001"].at, s.bound["at-5-000001"]
	if time.Since(seen).Abs() > time.Minute || time.Since(bound).Abs() > time.Minute {
		t.Errorf("after the lines %q the pod was seen at %v and bound at %v, want both now", out.String(), seen, bound)
	}
}

// TestStampOfDecemberReadInJanuaryIsOfLastYear checks the year of a log line, which klog does not
// write.
func TestStampOfDecemberReadInJanuaryIsOfLastYear(t *testing.T) {
	now := time.Date(2027, 1, 1, 0, 0, 1, 0, time.Local)
	got, err := stamp("1231 23:59:59.000001", now)
	if want := time.Date(2026, 12, 31, 23, 59, 59, 1000, time.Local); err != nil || !got.Equal(want) {
		t.Errorf("stamp() = %v, %v, want %v", got, err, want)
	}
}

func TestRateIsSummarized(t *testing.T) {
	start := time.Unix(100, 0)
	m := newMade(3)
	s := &sightings{seen: map[string]sighting{}, bound: map[string]time.Time{}}
	for i, name := range []string{"a", "b", "c"} {
		requested := start.Add(time.Duration(i) * time.Second)
		m.note(name, requested, requested.Add(20*time.Millisecond))
		s.seen[name] = sighting{clusterdir.IntakeWatch, requested.Add(10 * time.Millisecond)}
		s.bound[name] = requested.Add(50 * time.Millisecond)
	}
	s.seen["b"] = sighting{clusterdir.IntakeWebhook, start.Add(time.Second + time.Millisecond)}
	delete(s.bound, "c")
	var before, after used
	after.apiServers.CPU = 30 * time.Millisecond
	got := summarizeRate(2, m, s, before, after)
	if got.Created != 3 || got.Seen != 3 || got.Bound != 2 || got.ByWebhook != 1 || got.APIServerCPUMicrosPerPod != 10_000 {
		t.Errorf("summarizeRate() = %+v, want 3 pods created and seen, 2 bound, 1 by the webhook and 10000 µs per pod", got)
	}
	near := func(got, want float64) bool { return got > want*0.99 && got < want*1.01 }
	if !near(got.SeenMillis.P50, 10) || !near(got.SeenMillis.Max, 10) || !near(got.BoundMillis.P99, 50) || !near(got.CreateMillis.P50, 20) || !near(got.CreatedPerSecond, 3/2.02) {
		t.Errorf("summarizeRate() = %+v, want seen after 10 ms, bound after 50 ms, created after 20 ms and %.2f pods per second", got, 3/2.02)
	}
	result := IntakeResult{Intakes: []IntakeMeasured{{Name: "watch", Rates: []IntakeRate{got}}}}
	want := "intake watch at 2/s: 1 of 3 pods were not seen or not bound; repeat the run with --keep and read the log of the scheduler"
	if err := result.Err(); err == nil || err.Error() != want {
		t.Errorf("Err() = %v, want %s", err, want)
	}
	if _, err := json.Marshal(result); err != nil {
		t.Errorf("Marshal() of the result = %v, want nil", err)
	}
}
