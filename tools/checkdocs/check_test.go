package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// program is a fake k1m. Its help lists one command, which has one flag. The help of that command has a
// list that is not one of subcommands.
const program = `#!/bin/sh
case "$1" in
up) echo "The stores are:"; echo "  etcd   the store of Kubernetes"; echo "Flags:"; echo "      --nodes int   number of nodes" ;;
*) echo "Usage:"; echo "  k1m [command]"; echo; echo "Available Commands:"; echo "  up   Bring up a cluster" ;;
esac
`

func TestCheckReportsMistakes(t *testing.T) {
	cases := map[string]struct {
		page string
		want []string
	}{
		"correct page":    {"# Two words\n[a](b.md#two-words) `k1m up --nodes 3` `make up` `docs/b.md` `--nodes`\n", nil},
		"missing file":    {"\n[a](gone.md)\n", []string{"docs/a.md:2: link gone.md: no such file"}},
		"missing heading": {"[a](b.md#gone)\n", []string{"docs/a.md:1: link b.md#gone: no such heading"}},
		"missing path":    {"See `docs/gone.md`.\n", []string{"docs/a.md:1: docs/gone.md: no such file"}},
		"missing target":  {"```sh\nmake gone\n```\n", []string{"docs/a.md:2: make gone: no such target"}},
		"missing command": {"```sh\nx\nbin/k1m down --now # stops it\n```\n", []string{"docs/a.md:3: k1m down: no such command"}},
		"missing flag":    {"`k1m up --gone`\n", []string{"docs/a.md:1: k1m up: no flag --gone"}},
		"placeholder":     {"`k1m COMMAND --nodes 3`, `docs/NAME/x`\n", nil},
		"drawing":         {"```text\nk1m ──▶ gone\n```\n", nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			root := repository(t, c.page)
			mistakes, err := check(root, filepath.Join(root, "bin"), []string{"docs/a.md"})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range mistakes {
				got = append(got, m.String())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("check returned the mistakes %q, want %q", got, c.want)
			}
		})
	}
}

// repository creates a small repository in which docs/a.md has the content page, and returns its root.
func repository(t *testing.T, page string) string {
	root := t.TempDir()
	files := map[string]string{
		"Makefile":  "up: ## Bring up a cluster\n",
		"docs/a.md": page,
		"docs/b.md": "# Two words\n",
		"bin/k1m":   program,
	}
	for _, name := range []string{"dist-scheduler", "etcd-bench", "etcd-proxy", "kube-gateway", "mem_etcd", "network-agent", "network-gateway", "node-sim", "warm-controller-manager"} {
		files["bin/"+name] = "#!/bin/sh\n"
	}
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}
