// Command images writes a container image of each program of this repository, without a daemon: as OCI image
// layout, and as an archive of the same for `docker load`, `podman load` and `ctr image import`.
//
// The same programs, version and time give the same bytes. Programs must be static, because an image contains
// nothing else than the files of base.go. Arguments are the programs that get an image, by default all.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

func main() {
	release := release{}
	programs := flag.String("programs", "target/static", "folder with the static programs")
	out := flag.String("out", "target/images", "folder for the images; existing images in it are replaced")
	flag.StringVar(&release.version, "version", "dev", "tag of the images, and their version label")
	flag.StringVar(&release.revision, "revision", "", "commit of the sources, for the revision label")
	seconds := flag.Int64("time", 0, "time of the sources, in seconds since 1970: the time of all files and of the images")
	flag.Parse()
	release.time = time.Unix(*seconds, 0).UTC()
	if err := writeAll(*programs, *out, flag.Args(), release); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// writeAll writes the images of programs; of all programs if there are no names.
func writeAll(programs, out string, names []string, r release) error {
	for _, name := range names {
		if !slices.ContainsFunc(all, func(p program) bool { return p.name == name }) {
			return fmt.Errorf("%q: no such program", name)
		}
	}
	for _, p := range all {
		if len(names) > 0 && !slices.Contains(names, p.name) {
			continue
		}
		image, err := build(p, filepath.Join(programs, p.name), r)
		if err != nil {
			return fmt.Errorf("building the image of %s: %w", p.name, err)
		}
		if err := write(image, filepath.Join(out, p.name), p.name, r); err != nil {
			return fmt.Errorf("writing the image of %s: %w", p.name, err)
		}
		digest, err := image.Digest()
		if err != nil {
			return err
		}
		fmt.Printf("%-24s %s %s\n", p.name+":"+r.version, digest, platform)
	}
	return nil
}

// write writes an image as layout into a folder, and as archive beside it.
func write(image v1.Image, folder, name string, r release) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	path, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	err = path.AppendImage(image, layout.WithPlatform(platform), layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": r.version,
		// containerd, and so docker and ctr, take the name of an imported image from this annotation.
		"io.containerd.image.name": "localhost/" + name + ":" + r.version,
	}))
	if err != nil {
		return err
	}
	return archive(folder, folder+".tar", r.time)
}
