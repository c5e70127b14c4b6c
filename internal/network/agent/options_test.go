package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/network/claim"
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
	if s, err := readState(path); err != nil || s.Claimed.IsValid() || s.Earlier != nil {
		t.Errorf("without a file: %+v, %v", s, err)
	}
	o := parse(t, []string{"--prefix", "2001:db8::/80"})
	provided, err := o.provided()
	if err != nil {
		t.Fatal(err)
	}
	want := state{Node: "node", Claimed: provided, Pods: provided, Earlier: []held{{"former", provided}}}
	if err := want.write(path); err != nil {
		t.Fatal(err)
	}
	if s, err := readState(path); err != nil || !reflect.DeepEqual(s, want) {
		t.Errorf("read %+v, %v", s, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readState(path); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("a damaged file: %v", err)
	}
}

// refusing is a store of claims that fails for some time.
type refusing struct {
	claim.Store
	failures int
}

func (r *refusing) Update(ctx context.Context, prefix netip.Prefix, change func(*claim.Claim) (*claim.Claim, error)) error {
	if r.failures > 0 {
		r.failures--
		return errors.New("no answer")
	}
	return r.Store.Update(ctx, prefix, change)
}

// A prefix that could not be given back is kept in the state, over a restart, until it is given back.
func TestEarlierPrefixIsNotForgotten(t *testing.T) {
	directory, err := claim.NewDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o := parse(t, []string{"--prefix", "2001:db8:2::/96", "--claims", "kubernetes", "--node", "a", "--state", filepath.Join(t.TempDir(), "state")})
	former := netip.MustParsePrefix("2001:db8:1::/96")
	if err := claim.Take(t.Context(), directory, former, "a", time.Hour); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	now, err := o.awaitPrefix(t.Context(), directory, state{Node: "a", Claimed: former, Pods: former}, log, func() {})
	if err != nil || len(now.Earlier) != 1 || now.Earlier[0] != (held{"a", former}) {
		t.Fatalf("state %+v, %v", now, err)
	}
	store := &refusing{directory, 1}
	if now.Earlier = release(t.Context(), store, now.Earlier, log); len(now.Earlier) != 1 {
		t.Fatal("a release that has failed is forgotten")
	}
	again, err := o.awaitPrefix(t.Context(), directory, now, log, func() {})
	if err != nil || !reflect.DeepEqual(again, now) {
		t.Fatalf("after a restart: %+v, %v", again, err)
	}
	if err := o.releaseEarlier(t.Context(), store, again, log); err != nil {
		t.Fatal(err)
	}
	if s, err := readState(o.StateAt); err != nil || len(s.Earlier) != 0 || s.Claimed != now.Claimed {
		t.Errorf("state %+v, %v", s, err)
	}
	if err := claim.Take(t.Context(), directory, former, "b", 0); err != nil {
		t.Errorf("the former prefix was not released: %v", err)
	}
}
