package gateway

import (
	"encoding/xml"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

const (
	// minHTTP2Cases is the number of cases that h2spec has at least.
	minHTTP2Cases = 140
	// repetitions is how often failed cases are repeated.
	repetitions = 4
)

// testHTTP2 runs the conformance suite h2spec with the gateway and with an API server. The gateway must not fail in a case
// in which the API server does not. On a busy machine h2spec may give up too early, so a failed case is a failure only if it
// fails each time.
func testHTTP2(t *testing.T, c *cluster) {
	var direct, through []string
	var both sync.WaitGroup
	both.Go(func() { direct = c.h2spec(t, c.Servers[0]) })
	both.Go(func() { through = c.h2spec(t, c.gateway) })
	both.Wait()
	t.Logf("an API server fails in %q, the gateway in %q", direct, through)
	through = slices.DeleteFunc(through, func(name string) bool { return slices.Contains(direct, name) })
	for range repetitions {
		if len(through) == 0 {
			return
		}
		again := c.h2spec(t, c.gateway)
		t.Logf("the gateway fails in %q when repeated", again)
		through = slices.DeleteFunc(through, func(name string) bool { return !slices.Contains(again, name) })
	}
	for _, name := range through {
		t.Errorf("the gateway fails each time in %q, an API server does not", name)
	}
}

// h2spec returns the failed cases.
func (c *cluster) h2spec(t *testing.T, address string) []string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Error(err)
		return nil
	}
	report := filepath.Join(t.TempDir(), "report.xml")
	// The exit code is ignored: the report contains the failed cases.
	output, _ := exec.Command(filepath.Join(c.Bin, "h2spec"), "-t", "-k", "-h", host, "-p", port, "-P", "/version", "-o", "3", "-j", report).CombinedOutput()
	text, err := os.ReadFile(report)
	if err != nil {
		t.Errorf("%v: %s", err, output)
		return nil
	}
	var suites struct {
		Suites []struct {
			Name  string `xml:"name,attr"`
			Cases []struct {
				Name    string    `xml:"classname,attr"`
				Failure *struct{} `xml:"failure"`
				Error   *struct{} `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(text, &suites); err != nil {
		t.Error(err)
		return nil
	}
	cases, failures := 0, []string{}
	for _, suite := range suites.Suites {
		for _, test := range suite.Cases {
			cases++
			if test.Failure != nil || test.Error != nil {
				failures = append(failures, suite.Name+": "+test.Name)
			}
		}
	}
	if cases < minHTTP2Cases {
		t.Errorf("h2spec ran %d cases with %s, want at least %d", cases, address, minHTTP2Cases)
	}
	return failures
}
