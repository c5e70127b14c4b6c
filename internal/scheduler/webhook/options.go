package webhook

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"

	"github.com/spf13/pflag"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Values of --intake.
const (
	// ModeWatch receives pods only from the watch, as kube-scheduler does.
	ModeWatch = "watch"
	// ModeWebhook receives pods from the webhook and from the watch.
	ModeWebhook = "webhook"
	// modeBoth is not a valid mode. Its error message tells users to choose webhook, which includes the
	// watch.
	modeBoth = "both"
)

const defaultPort = 10261

// Options configure the webhook; they are the flags --intake and --intake-*.
type Options struct {
	// Mode is ModeWatch or ModeWebhook.
	Mode string
	// BindAddress is the IP address, and Port the port, on which the webhook listens.
	BindAddress string
	Port        int
	// URL is the URL at which API servers reach this process. If empty, it is derived from
	// BindAddress and Port.
	URL string
	// ClientCAFile has the CAs that sign the client certificates of API servers, and ClientNames are the
	// common names of these certificates. Without them, no client certificate is required.
	ClientCAFile string
	ClientNames  []string
	// Name is the name of the ValidatingWebhookConfiguration and of the Secret with its CA.
	Name string
}

// DefaultOptions returns options without the webhook.
func DefaultOptions() Options {
	return Options{Mode: ModeWatch, BindAddress: "0.0.0.0", Port: defaultPort, Name: "dist-scheduler-intake"}
}

// AddFlags adds the flags to a flag set.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Mode, "intake", o.Mode, "How the scheduler receives pods: 'watch' as in kube-scheduler, or 'webhook', which also receives pods from API servers while they create them. The leader serves the webhook and maintains its ValidatingWebhookConfiguration, which fails open; pods that the webhook misses arrive through the watch.")
	fs.StringVar(&o.BindAddress, "intake-bind-address", o.BindAddress, "The IP address on which the webhook listens (:: for all IPv6 interfaces). Used with --intake=webhook.")
	fs.IntVar(&o.Port, "intake-port", o.Port, "The port on which the webhook listens. Used with --intake=webhook.")
	fs.StringVar(&o.URL, "intake-url", o.URL, "The URL at which API servers reach the webhook of this process, without a path, such as https://10.0.0.7:10261. Each replica needs its own URL, so it cannot be the URL of a Service. Default: the bind address, or the address of the host's default interface if the bind address is unspecified. Used with --intake=webhook.")
	fs.StringVar(&o.ClientCAFile, "intake-client-ca-file", o.ClientCAFile, "File with the CAs of the client certificates with which API servers call the webhook. If set, the webhook accepts pods only from clients with such a certificate and a name in --intake-client-names. API servers get a certificate by --admission-control-config-file: an AdmissionConfiguration whose plugin ValidatingAdmissionWebhook has a kubeConfigFile with a user of the name HOST:PORT of --intake-url. Changed files are read again. Used with --intake=webhook.")
	fs.StringSliceVar(&o.ClientNames, "intake-client-names", o.ClientNames, "The common names of the client certificates that the webhook accepts. Required with --intake-client-ca-file.")
	fs.StringVar(&o.Name, "intake-name", o.Name, "The name of the ValidatingWebhookConfiguration and of the Secret in kube-system with its CA. Independent schedulers in one cluster need different names. Used with --intake=webhook.")
}

// Enabled reports whether the webhook is served.
func (o *Options) Enabled() bool { return o.Mode == ModeWebhook }

// Validate returns an error for the first invalid option.
func (o *Options) Validate() error {
	switch o.Mode {
	case ModeWatch:
		return nil
	case ModeWebhook:
	case modeBoth:
		return fmt.Errorf("--intake both: no such mode; use --intake webhook, which also receives pods from the watch")
	default:
		return fmt.Errorf("--intake %q: no such mode; choose watch or webhook", o.Mode)
	}
	if _, err := netip.ParseAddr(o.BindAddress); err != nil {
		return fmt.Errorf("--intake-bind-address %q: not an IP address; use 0.0.0.0 for all", o.BindAddress)
	}
	if o.Port < 1 || o.Port > 65535 {
		return fmt.Errorf("--intake-port %d: choose 1 to 65535", o.Port)
	}
	if len(validation.IsDNS1123Subdomain(o.Name)) > 0 {
		return fmt.Errorf("--intake-name %q: use a-z, 0-9, '-' and '.', beginning and ending with a letter or digit", o.Name)
	}
	if (o.ClientCAFile == "") != (len(o.ClientNames) == 0) {
		return errors.New("set both of --intake-client-ca-file and --intake-client-names, or none")
	}
	return o.validateURL()
}

func (o *Options) validateURL() error {
	if o.URL == "" {
		return nil
	}
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" && u.Path != "/" {
		return fmt.Errorf("--intake-url %q: write it like https://10.0.0.7:%d", o.URL, o.Port)
	}
	return nil
}

func (o *Options) address() string { return net.JoinHostPort(o.BindAddress, strconv.Itoa(o.Port)) }

// advertised returns the host for the webhook's URL: the bind address, or the address of the host's default
// interface if the bind address is unspecified.
func (o *Options) advertised() (string, error) {
	ip := net.ParseIP(o.BindAddress)
	// ResolveBindAddress would replace a loopback address.
	if ip.IsLoopback() {
		return ip.String(), nil
	}
	address, err := utilnet.ResolveBindAddress(ip)
	if err != nil {
		return "", fmt.Errorf("finding the address of this host: %w; set --intake-url", err)
	}
	return address.String(), nil
}
