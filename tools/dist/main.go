// Command dist writes the files of a release from static programs: `dist archives` an archive of each program and a
// list of everything that is compiled into them (a CycloneDX SBOM), and `dist sums` the SHA-256 checksums of all files of
// the release. The same programs, version and time give the same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// programs are those of a release, by language.
var (
	rustPrograms = []string{"mem_etcd", "etcd-proxy", "kube-gateway", "node-sim"}
	goPrograms   = []string{"k1m", "dist-scheduler", "warm-controller-manager"}
)

// release says what the files are built from.
type release struct {
	// programs is the folder with the static programs, and out the folder for the files.
	programs, out string
	version       string
	time          time.Time
}

func main() {
	var r release
	flags := flag.NewFlagSet("dist", flag.ExitOnError)
	flags.StringVar(&r.programs, "programs", "target/static", "folder with the static programs")
	flags.StringVar(&r.out, "out", "target/dist", "folder for the files of the release")
	flags.StringVar(&r.version, "version", "dev", "version in the names of the files")
	seconds := flags.Int64("time", 0, "time of the sources, in seconds since 1970")
	command := ""
	if len(os.Args) > 1 {
		command = os.Args[1]
		_ = flags.Parse(os.Args[2:]) // ExitOnError
	}
	r.time = time.Unix(*seconds, 0).UTC()
	if err := r.run(command); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

func (r *release) run(command string) error {
	switch command {
	case "archives":
		return errors.Join(r.writeArchives(), r.writeBOM())
	case "sums":
		return r.writeSums()
	}
	return fmt.Errorf("%q: no such command; use archives or sums", command)
}

// name returns the name of a file of the release.
func (r *release) name(program, ending string) string {
	return filepath.Join(r.out, fmt.Sprintf("%s-%s-linux-%s%s", program, r.version, runtime.GOARCH, ending))
}
