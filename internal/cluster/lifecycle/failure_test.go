package lifecycle

import (
	"strings"
	"testing"
	"time"
)

func TestLastStoreErrorIgnoresEarlierRuns(t *testing.T) {
	lines := strings.Split(`{"timestamp":"2026-01-01T10:00:00.5Z","level":"ERROR","message":"before"}
{"timestamp":"2026-01-01T11:00:00.5Z","level":"ERROR","message":"no space left"}
{"timestamp":"2026-01-01T11:00:01.5Z","level":"INFO","message":"ready"}
not JSON`, "\n")
	for since, want := range map[string]string{"2026-01-01T10:30:00Z": lines[1], "2026-01-01T11:30:00Z": ""} {
		from, err := time.Parse(time.RFC3339, since)
		if err != nil {
			t.Fatal(err)
		}
		if got := lastStoreError(lines, from); got != want {
			t.Errorf("lastStoreError() since %s = %q, want %q", since, got, want)
		}
	}
}
