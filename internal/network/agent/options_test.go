package agent

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func TestInvalidOptions(t *testing.T) {
	for _, c := range []struct{ flags, want string }{
		{"", "set either --prefix"},
		{"--prefix uplink --pool 2001:db8::/64 --claims none", "set either --prefix"},
		{"--pool 2001:db8::/64", "--pool needs --claims"},
		{"--prefix 10.0.0.0/8", "not an IPv6 prefix"},
		{"--prefix 2001:db8::/112", "longer than /96"},
		{"--prefix 2001:db8::1/64", "bits behind its length"},
		{"--prefix nonsense", `--prefix "nonsense"`},
		{"--prefix uplink --mode overlay", `--mode "overlay"`},
		{"--prefix uplink --bridge eth0", "name two links"},
		{"--prefix uplink --bridge a/b", "not a name of a link"},
		{"--prefix uplink --mtu 500", "--mtu 500"},
		{"--prefix uplink --node=", "--node"},
		{"--prefix uplink --claims=", "--claims"},
		{"--prefix uplink --reuse-after -1s", "must not be negative"},
		{"--prefix uplink --neighbour-entries 0", "must be positive"},
		{"--prefix uplink --metrics-address nowhere", "--metrics-address"},
	} {
		err := parse(t, strings.Fields(c.flags)).Validate()
		if err == nil || !errors.Is(err, usage.Err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.flags, err, c.want)
		}
	}
}

func parse(t *testing.T, args []string) *Options {
	t.Helper()
	o := DefaultOptions()
	o.Node = "node"
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o
}

// The flags in the files for providers are valid.
func TestFilesOfProviders(t *testing.T) {
	files, err := filepath.Glob("../../../deploy/network/providers/*.env")
	if err != nil || len(files) != 3 {
		t.Fatalf("files %v, %v", files, err)
	}
	flags := regexp.MustCompile(`(?m)^NETWORK_AGENT_FLAGS="(.*)"$`)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		match := flags.FindSubmatch(content)
		if match == nil {
			t.Fatalf("%s sets no flags", file)
		}
		if err := parse(t, strings.Fields(string(match[1]))).Validate(); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--help"}, 0, "real addresses"},
		{[]string{"--mode", "overlay", "--prefix", "uplink"}, 2, "choose routed"},
		{[]string{"--no-such-flag"}, 2, "see network-agent --help"},
		{[]string{"dance"}, 2, "no such command"},
		{[]string{"leave"}, 2, "set either --prefix"},
	} {
		var stdout, stderr bytes.Buffer
		if code := Main("test", c.args, &stdout, &stderr); code != c.code || !strings.Contains(stdout.String()+stderr.String(), c.want) {
			t.Errorf("%v: exit code %d, %s%s", c.args, code, stdout.String(), stderr.String())
		}
	}
}

func TestState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "state.json")
	if s, err := readState(path); err != nil || s != (state{}) {
		t.Errorf("without a file: %+v, %v", s, err)
	}
	o := parse(t, []string{"--prefix", "2001:db8::/80"})
	provided, err := o.provided()
	if err != nil {
		t.Fatal(err)
	}
	want := state{Node: "node", Claimed: provided, Pods: provided}
	if err := want.write(path); err != nil {
		t.Fatal(err)
	}
	if s, err := readState(path); err != nil || s != want {
		t.Errorf("read %+v, %v", s, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readState(path); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("a damaged file: %v", err)
	}
}
