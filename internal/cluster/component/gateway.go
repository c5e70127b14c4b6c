package component

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	yaml12 "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// gatewayDrainTimeout is how long a gateway waits after SIGTERM for requests in progress. It is less than
// the stop period, so that the process exits before it is killed.
const gatewayDrainTimeout = "3s"

// gateway returns the kube-gateway with the given component name. All gateways forward to all API servers.
func (b *builder) gateway(name string) Component {
	ports := b.config.Ports
	var a args
	a.add("config", b.dir.ConfigFile(gatewayConfigFile(name)))
	a.addUserArgs(b.config.Settings.GatewayArgs)

	return Component{
		Name:      name,
		Binary:    b.binary("kube-gateway"),
		Args:      a,
		Address:   ports.URL(name),
		DependsOn: b.apiServerNames(),
		Ready:     Probe{URL: "http://" + ports.Address(clusterdir.GatewayMetricsPort(name)) + "/readyz"},
		StopGrace: statelessStopGrace,
	}
}

func gatewayConfigFile(gateway string) string { return gateway + ".yaml" }

// gatewayConfig returns the content of the configuration file of a gateway. It probes the API servers and
// reads their load as the user system:kube-gateway of the group system:monitoring. The front-proxy
// certificate allows it to name any user, so it needs no certificate and no permissions of its own.
func gatewayConfig(config clusterdir.Config, dir clusterdir.Dir, name string) ([]byte, error) {
	b := builder{config: config, dir: dir}
	servers := make([]string, config.Settings.APIServers)
	for i := range servers {
		servers[i] = config.Ports.Address(clusterdir.APIServerName(i))
	}
	fields := map[string]any{
		"apiVersion": "gateway.k8s-1m.dev/v1alpha1",
		"kind":       "GatewayConfiguration",
		"listen": map[string]any{
			"address":        config.Ports.Address(name),
			"metricsAddress": config.Ports.Address(clusterdir.GatewayMetricsPort(name)),
			"certFile":       b.pki(pki.GatewayFile + ".crt"),
			"keyFile":        b.pki(pki.GatewayFile + ".key"),
			"clientCaFile":   b.pki("ca.crt"),
		},
		"upstream": map[string]any{"servers": servers, "caFile": b.pki("ca.crt")},
		"requestHeader": map[string]any{
			"certFile": b.pki("front-proxy-client.crt"), "keyFile": b.pki("front-proxy-client.key"),
		},
		"drainTimeout": gatewayDrainTimeout,
		"nodePath":     map[string]any{"store": b.gatewayStore()},
	}
	// A cluster in a deep directory works too, only without the commands that use the socket.
	if socket := dir.Socket(name); clusterdir.SocketFits(socket) {
		fields["control"] = map[string]any{"socket": socket}
	}
	if b.gatewayRenewsLeases() {
		// Otherwise kube-apiserver would send each renewal to kube-controller-manager (ADR 19).
		override(fields, map[string]any{"nodePath": map[string]any{"leases": map[string]any{"watch": "on"}}})
	}
	user, err := userGatewayConfig(config)
	if err != nil {
		return nil, err
	}
	override(fields, user)
	return yaml.Marshal(fields)
}

// userGatewayConfig returns the fields in the file of --gateway-config; none without a file.
func userGatewayConfig(config clusterdir.Config) (map[string]any, error) {
	path := config.Settings.GatewayConfig
	if path == "" {
		return nil, nil
	}
	fields, err := readFields(path)
	if err != nil {
		return nil, usage.Errorf("--gateway-config %s: %v; name a YAML file with fields of kube-gateway's configuration", path, err)
	}
	return fields, nil
}

// gatewayRenewsLeases returns whether the gateways write renewals of node Leases into the store. An error in
// the file of --gateway-config is reported when the files of the gateways are written.
func (b *builder) gatewayRenewsLeases() bool {
	if len(b.config.Settings.GatewayNames()) == 0 {
		return false
	}
	mode := ""
	for _, arg := range b.config.Settings.GatewayArgs {
		if value, found := strings.CutPrefix(strings.TrimLeft(arg, "-"), "node-path-leases="); found {
			mode = value
		}
	}
	if mode != "" {
		return mode == "on"
	}
	user, _ := userGatewayConfig(b.config)
	value, _, _ := unstructured.NestedString(user, "nodePath", "leases", "mode")
	return value == "on"
}

// gatewayStore returns how a gateway reaches the store of Leases for nodePath.leases, which is off unless
// --gateway-config sets a mode.
func (b *builder) gatewayStore() map[string]any {
	client := NewStoreClient(b.config, b.dir, b.config.Settings.StoreOf(clusterdir.LeasesResource))
	if b.config.Settings.StoreAddress == "" {
		client.CertFile, client.KeyFile = b.pki(pki.GatewayStoreFile+".crt"), b.pki(pki.GatewayStoreFile+".key")
	}
	store := map[string]any{"endpoints": client.Endpoints()}
	for field, file := range map[string]string{"caFile": client.CAFile, "certFile": client.CertFile, "keyFile": client.KeyFile} {
		if file != "" {
			store[field] = file
		}
	}
	return store
}

// readFields reads the fields of a YAML file. kube-gateway reads YAML 1.2, in which "on" is a string. So does this
// function: for sigs.k8s.io/yaml, it is true.
func readFields(path string) (map[string]any, error) {
	content, err := os.ReadFile(path)
	var failed *fs.PathError
	if errors.As(err, &failed) {
		return nil, failed.Err
	}
	var decoded any
	if err = errors.Join(err, yaml12.Unmarshal(content, &decoded)); err != nil || decoded == nil {
		return nil, err
	}
	fields, ok := decoded.(map[string]any)
	if !ok {
		return nil, errors.New("it is not a mapping with names as keys")
	}
	return fields, nil
}

// override sets the fields of target that are in source. Objects are merged field by field.
func override(target, source map[string]any) {
	for key, value := range source {
		from, isObject := value.(map[string]any)
		into, wasObject := target[key].(map[string]any)
		if isObject && wasObject {
			override(into, from)
			continue
		}
		target[key] = value
	}
}

// ClientURLs returns the URLs to which clients connect: those of the gateways or, without a gateway, those
// of the API servers.
func ClientURLs(config clusterdir.Config) []string {
	gateways := config.Settings.GatewayNames()
	if len(gateways) == 0 {
		return APIServerURLs(config)
	}
	urls := make([]string, len(gateways))
	for i, name := range gateways {
		urls[i] = config.Ports.URL(name)
	}
	return urls
}
