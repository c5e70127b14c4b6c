package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// program is a program that gets an image.
type program struct {
	name        string
	description string
	// ports are those that the program listens on by default.
	ports []string
	// state is true if the program writes files. They are in /var/lib/NAME, which is also its working directory.
	state bool
}

// all are the programs that get an image.
var all = []program{
	{name: "mem_etcd", description: "a drop-in etcd for Kubernetes that keeps all keys in memory", ports: []string{"2379/tcp", "2380/tcp"}, state: true},
	{name: "dist-scheduler", description: "a drop-in kube-scheduler for large clusters", ports: []string{"10259/tcp"}},
	{name: "kube-gateway", description: "a proxy that balances several kube-apiservers", ports: []string{"6443/tcp"}},
	{name: "etcd-proxy", description: "a proxy in front of etcd that records and replays traffic", ports: []string{"2379/tcp"}, state: true},
	{name: "node-sim", description: "a simulator of many Kubernetes nodes"},
	{name: "warm-controller-manager", description: "a drop-in kube-controller-manager with a warm standby", ports: []string{"10257/tcp"}},
	{name: "k1m", description: "the tool for clusters; the Helm chart uses it for certificates"},
}

// release says what the images are built from.
type release struct {
	version, revision string
	time              time.Time
}

var platform = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}

// build returns the image of a program: a layer with the files that all images have, and one with the program.
func build(p program, executable string, r release) (v1.Image, error) {
	if err := checkStatic(executable); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(executable)
	if err != nil {
		return nil, err
	}
	files := []file{{path: "usr/local/bin/" + p.name, mode: 0o755, content: content}}
	if p.state {
		files = append(files, file{path: "var/lib/" + p.name, mode: 0o700 | os.ModeDir, owner: user})
	}
	programLayer, err := newLayer(files, r.time)
	if err != nil {
		return nil, err
	}
	baseLayer, err := newLayer(baseFiles(), r.time)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.AppendLayers(image, baseLayer, programLayer)
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, configFile(p, r, image))
}

// configFile returns the configuration of an image, which already has its layers.
func configFile(p program, r release, image v1.Image) *v1.ConfigFile {
	layers, err := image.ConfigFile()
	if err != nil {
		panic(err) // Cannot happen: the layers are in memory.
	}
	config := layers.DeepCopy()
	config.OS, config.Architecture, config.Created = platform.OS, platform.Architecture, v1.Time{Time: r.time}
	config.History = []v1.History{
		{Created: config.Created, CreatedBy: "tools/images", Comment: "CA certificates, users and name resolution"},
		{Created: config.Created, CreatedBy: "tools/images", Comment: p.name},
	}
	config.Config = v1.Config{
		User: fmt.Sprintf("%d:%d", user, user), Entrypoint: []string{"/usr/local/bin/" + p.name}, WorkingDir: "/",
		Env:    []string{"PATH=/usr/local/bin", "SSL_CERT_FILE=/" + certificates},
		Labels: labels(p, r), ExposedPorts: map[string]struct{}{},
	}
	for _, port := range p.ports {
		config.Config.ExposedPorts[port] = struct{}{}
	}
	if p.state {
		config.Config.WorkingDir = "/var/lib/" + p.name
		config.Config.Volumes = map[string]struct{}{"/var/lib/" + p.name: {}}
	}
	return config
}

// labels are those of the OCI image specification.
func labels(p program, r release) map[string]string {
	const prefix = "org.opencontainers.image."
	set := map[string]string{
		prefix + "title": p.name, prefix + "description": p.description, prefix + "version": r.version,
		prefix + "created": r.time.Format(time.RFC3339), prefix + "licenses": "Apache-2.0",
		prefix + "source": "https://github.com/k8s-1m/k8s-1m",
	}
	if r.revision != "" {
		set[prefix+"revision"] = r.revision
	}
	return set
}

// checkStatic returns an error if a program needs shared libraries, which an image does not have.
func checkStatic(executable string) error {
	file, err := elf.Open(executable)
	if err != nil {
		return fmt.Errorf("%w; build it with build/static.sh", err)
	}
	defer file.Close()
	for _, section := range file.Progs {
		if section.Type == elf.PT_INTERP {
			return errors.New(executable + " needs shared libraries; build it with build/static.sh")
		}
	}
	return nil
}
