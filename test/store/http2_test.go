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

// expectedHTTP2Failures are the cases of h2spec that fail, with the reason.
var expectedHTTP2Failures = []string{
	// The port speaks HTTP/1.1 as well, in which such a beginning is answered
	// with 400 before the connection is closed.
	"3.5. HTTP/2 Connection Preface: Sends invalid connection preface",
}

// TestHTTP2 runs the conformance suite h2spec, every case of it.
func TestHTTP2(t *testing.T) {
	s := startMemEtcd(t)
	host, port, err := net.SplitHostPort(s.address)
	if err != nil {
		t.Fatal(err)
	}
	report := filepath.Join(t.TempDir(), "report.xml")
	// Its exit code says that something failed; what it was is in the report.
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
		t.Errorf("%d cases; these fail: %q", cases, failures)
	}
	t.Logf("%d cases, %d as expected not passed", cases, len(failures))
}
