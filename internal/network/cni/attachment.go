package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// Attachment is a pod's link to the bridge, as a runtime has recorded it.
type Attachment struct {
	Container string
	// Port is the port of the bridge.
	Port string
	// MAC and Address are those of the pod.
	MAC     [6]byte
	Address netip.Addr
}

// cached is what libcni, which containerd and CRI-O use, writes for each attachment.
type cached struct {
	Kind        string `json:"kind"`
	ContainerID string `json:"containerId"`
	NetworkName string `json:"networkName"`
	Result      struct {
		Interfaces []struct {
			Name, Mac, Sandbox string
		} `json:"interfaces"`
		IPs []struct {
			Address   string `json:"address"`
			Interface *int   `json:"interface"`
		} `json:"ips"`
	} `json:"result"`
}

const cachedKind = "cniCacheV1"

// parseAttachment parses a file of a runtime. ok is false if it is not about this network and bridge.
func parseAttachment(content []byte, bridge string) (a Attachment, ok bool, err error) {
	var c cached
	if err := json.Unmarshal(content, &c); err != nil {
		return a, false, err
	}
	if c.Kind != cachedKind || c.NetworkName != NetworkName {
		return a, false, nil
	}
	a.Container = c.ContainerID
	own := -1
	for i, link := range c.Result.Interfaces {
		switch {
		case link.Sandbox != "":
			mac, err := net.ParseMAC(link.Mac)
			if err != nil || len(mac) != 6 {
				return a, false, fmt.Errorf("%q is not an Ethernet address", link.Mac)
			}
			a.MAC, own = [6]byte(mac), i
		case link.Name != bridge:
			a.Port = link.Name
		}
	}
	for _, ip := range c.Result.IPs {
		p, err := netip.ParsePrefix(ip.Address)
		if err != nil {
			return a, false, err
		}
		if p.Addr().Is6() && (ip.Interface == nil || *ip.Interface == own) {
			a.Address = p.Addr()
		}
	}
	if own < 0 || a.Port == "" || !a.Address.IsValid() {
		return a, false, errors.New("no port, no link of the pod or no IPv6 address in the result")
	}
	return a, true, nil
}

// Attachments reads the attachments of the pods' network that a runtime has recorded in a directory. The second error lists files that
// cannot be read: they are left out, because a damaged record must not cut off other pods.
func Attachments(dir, bridge string) (all []Attachment, damaged, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read the results of CNI: %w", err)
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), NetworkName+"-") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // the pod has just been deleted
		}
		var a Attachment
		ok := false
		// A file that is being written is empty or incomplete; its end is another event.
		if err == nil && len(content) > 0 {
			a, ok, err = parseAttachment(content, bridge)
		}
		if err != nil {
			damaged = errors.Join(damaged, fmt.Errorf("result of CNI %s: %w", entry.Name(), err))
		} else if ok {
			all = append(all, a)
		}
	}
	return all, damaged, nil
}
