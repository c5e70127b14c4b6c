package cni

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var config = Config{
	Bridge: "cni0", Pods: netip.MustParsePrefix("2001:db8:2:0:0:5::/96"), Node: netip.MustParseAddr("2001:db8:2:0:0:5:9000:1"), MTU: 1500,
	LeasesDir: DefaultLeasesDir,
}

func TestConfigExcludesTheNode(t *testing.T) {
	content, err := config.List()
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Plugins []struct {
			Type   string
			IPMasq bool
			IPAM   struct {
				Ranges [][]struct{ Subnet, RangeStart, RangeEnd, Gateway string }
			}
		}
	}
	if err := json.Unmarshal(content, &list); err != nil {
		t.Fatal(err)
	}
	bridge := list.Plugins[0]
	got := bridge.IPAM.Ranges[0][0]
	if bridge.Type != "bridge" || bridge.IPMasq || got.Subnet != "2001:db8:2::5:0:0/96" || got.RangeStart != "2001:db8:2::5:1:0" ||
		got.RangeEnd != "2001:db8:2::5:9000:0" || got.Gateway != "2001:db8:2::5:0:1" {
		t.Errorf("%s", content)
	}
	wrong := config
	wrong.Pods = netip.MustParsePrefix("10.0.0.0/8")
	if _, err := wrong.List(); err == nil {
		t.Error("a configuration with an IPv4 prefix")
	}
}

func TestConfigFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	for range 2 {
		if err := config.Write(dir); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != ConfigFile {
		t.Errorf("files %v, %v", entries, err)
	}
	for range 2 {
		if err := Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
}

const result = `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"k1m-pods","result":{"cniVersion":"1.0.0",
"interfaces":[{"name":"cni0","mac":"aa:00:00:00:00:01"},{"name":"veth12ab","mac":"aa:00:00:00:00:02"},
{"name":"eth0","mac":"aa:00:00:00:00:03","sandbox":"/run/netns/pod"}],
"ips":[{"interface":2,"address":"2001:db8::1:1/96","gateway":"2001:db8::1"}]}}`

func TestAttachments(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"k1m-pods-c1-eth0":  result,
		"k1m-pods-c2-eth0":  `{"kind":`,
		"k1m-pods-c3-eth0":  ``,
		"k1m-pods-c4-eth0":  strings.Replace(result, `"sandbox":"/run/netns/pod"`, `"sandbox":""`, 1),
		"k1m-pods-c5-eth0":  strings.Replace(result, "00:03", "zz", 1),
		"k1m-pods-x-c6":     strings.Replace(result, `"k1m-pods"`, `"k1m-pods-x"`, 1),
		"other-c7-eth0":     result,
		"k1m-pods-c8-eth0":  strings.Replace(result, "2001:db8::1:1/96", "10.0.0.1/8", 1),
		"k1m-pods-c9-eth0":  strings.Replace(result, "2001:db8::1:1/96", "nonsense", 1),
		"k1m-pods-c10-eth0": strings.Replace(result, "cniCacheV1", "cniCacheV9", 1),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	all, damaged, err := Attachments(dir, "cni0")
	want := Attachment{"c1", "veth12ab", [6]byte{0xaa, 0, 0, 0, 0, 3}, netip.MustParseAddr("2001:db8::1:1")}
	if err != nil || len(all) != 1 || all[0] != want {
		t.Errorf("attachments %v, %v", all, err)
	}
	for _, name := range []string{"c2", "c4", "c5", "c8", "c9"} {
		if damaged == nil || !strings.Contains(damaged.Error(), name+"-eth0") {
			t.Errorf("%s is not among the damaged: %v", name, damaged)
		}
	}
	if _, _, err := Attachments(filepath.Join(dir, "none"), "cni0"); err == nil {
		t.Error("a directory that does not exist")
	}
}

// The file in deploy/network is what the agent writes for the prefix in it.
func TestDeployedConfig(t *testing.T) {
	c := Config{Bridge: "cni0", Pods: netip.MustParsePrefix("2001:db8:1:7:0:1::/96"), MTU: 1500, LeasesDir: DefaultLeasesDir}
	want, err := c.List()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../../deploy/network/" + ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("deploy/network/%s differs from what the agent writes:\n%s", ConfigFile, want)
	}
}
