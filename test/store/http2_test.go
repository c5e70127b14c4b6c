package store

import (
	"encoding/xml"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// expectedHTTP2Failures are the cases of h2spec that fail. A comment gives the reason.
var expectedHTTP2Failures = []string{
	// The port also serves HTTP/1.1. The server answers an invalid preface as an invalid HTTP/1.1 request
	// with status 400 before it closes the connection.
	"3.5. HTTP/2 Connection Preface: Sends invalid connection preface",
}

// TestHTTP2 runs all cases of the conformance suite h2spec.
func TestHTTP2(t *testing.T) {
	s := startMemEtcd(t)
	host, port, err := net.SplitHostPort(s.address)
	if err != nil {
		t.Fatal(err)
	}
	report := filepath.Join(t.TempDir(), "report.xml")
	// The exit code is ignored: the report contains the failed cases.
	output, _ := exec.Command(binary(t, "h2spec"), "-h", host, "-p", port, "-P", "/version", "-o", "5", "-j", report).CombinedOutput()
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v: %s", err, output)
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
		t.Fatal(err)
	}
	cases, failures := 0, []string{}
	for _, suite := range suites.Suites {
		for _, c := range suite.Cases {
			cases++
			if c.Failure != nil || c.Error != nil {
				failures = append(failures, suite.Name+": "+c.Name)
			}
		}
	}
	if cases < 140 || !slices.Equal(failures, expectedHTTP2Failures) {
		t.Errorf("of %d cases, these fail: %q; want at least 140 cases, and failures of %q", cases, failures, expectedHTTP2Failures)
	}
	t.Logf("%d cases, %d failed as expected", cases, len(failures))
}
