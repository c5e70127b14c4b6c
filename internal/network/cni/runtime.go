package cni

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/k8s-1m/k8s-1m/internal/network/netns"
)

// podLink is the name of a pod's link.
const podLink = "eth0"

// pluginTimeout bounds a call of all plugins, as kubelet does.
const pluginTimeout = 2 * time.Minute

// Runtime calls CNI plugins as a container runtime does, with its library. The plugins run in the namespace of a node.
type Runtime struct {
	node *netns.Namespace
	list *libcni.NetworkConfigList
	cni  *libcni.CNIConfig
}

// NewRuntime returns a runtime for a node. plugins is the directory of the plugins, configs that of the configuration and
// cache that of the results, of which the agent reads the folder results.
func NewRuntime(node *netns.Namespace, plugins, configs, cache string) (*Runtime, error) {
	list, err := libcni.ConfListFromFile(filepath.Join(configs, ConfigFile))
	if err != nil {
		return nil, fmt.Errorf("read CNI configuration: %w", err)
	}
	return &Runtime{node: node, list: list, cni: libcni.NewCNIConfigWithCacheDir([]string{plugins}, cache, nil)}, nil
}

// ResultsDir returns the folder of a cache in which libcni writes results.
func ResultsDir(cache string) string { return filepath.Join(cache, "results") }

// Add attaches the namespace of a pod and returns its address.
func (r *Runtime) Add(ctx context.Context, container string, pod *netns.Namespace) (a netip.Addr, err error) {
	ctx, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	err = r.node.Do(func() error {
		result, err := r.cni.AddNetworkList(ctx, r.list, r.conf(container, pod.Path()))
		if err != nil {
			return err
		}
		converted, err := current.GetResult(result)
		if err != nil {
			return err
		}
		for _, ip := range converted.IPs {
			if found, ok := netip.AddrFromSlice(ip.Address.IP); ok {
				a = found
			}
		}
		return nil
	})
	if err != nil {
		return a, fmt.Errorf("attach pod %s: %w", container, err)
	}
	return a, nil
}

// Delete detaches the namespace of a pod. It is not an error if it is not attached.
func (r *Runtime) Delete(ctx context.Context, container, path string) error {
	ctx, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	err := r.node.Do(func() error { return r.cni.DelNetworkList(ctx, r.list, r.conf(container, path)) })
	if err != nil {
		return fmt.Errorf("detach pod %s: %w", container, err)
	}
	return nil
}

// Check asks the plugins whether the pod is still attached as they left it.
func (r *Runtime) Check(ctx context.Context, container, path string) error {
	return r.node.Do(func() error { return r.cni.CheckNetworkList(ctx, r.list, r.conf(container, path)) })
}

func (r *Runtime) conf(container, path string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: container, NetNS: path, IfName: podLink}
}
