package webhook

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"

	"github.com/spf13/pflag"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation"
)

// How pods come to the scheduler.
const (
	// ModeWatch is as with kube-scheduler.
	ModeWatch = "watch"
	// ModeWebhook adds a webhook that is earlier.
	ModeWebhook = "webhook"
	// modeBoth is what somebody may look for.
	modeBoth = "both"
)

const defaultPort = 10261

// Options of the intake.
type Options struct {
	Mode        string
	BindAddress string
	Port        int
	// URL where API servers reach this process, if that does not follow from the
	// address.
	URL string
	// Name of the webhook's configuration, and of the Secret with its authority.
	Name string
}

// DefaultOptions take pods by the watch alone.
func DefaultOptions() Options {
	return Options{Mode: ModeWatch, BindAddress: "0.0.0.0", Port: defaultPort, Name: "dist-scheduler-intake"}
}

// AddFlags binds the options to flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Mode, "intake", o.Mode, "How pods come to the scheduler: 'watch' as with kube-scheduler, or 'webhook', which lets API servers tell of pods while they create them and takes from the watch what the webhook missed. The scheduler that leads serves the webhook and keeps its ValidatingWebhookConfiguration, which fails open.")
	fs.StringVar(&o.BindAddress, "intake-bind-address", o.BindAddress, "The IP address on which the webhook listens (set to :: for all interfaces of IPv6). Used with --intake=webhook.")
	fs.IntVar(&o.Port, "intake-port", o.Port, "The port on which the webhook listens. Used with --intake=webhook.")
	fs.StringVar(&o.URL, "intake-url", o.URL, "The URL at which API servers reach the webhook of this process, without a path, such as https://10.0.0.7:10261; each replica needs its own, so it is not that of a Service. If empty, the address that it listens on, or that of the host's default interface. Used with --intake=webhook.")
	fs.StringVar(&o.Name, "intake-name", o.Name, "The name of the ValidatingWebhookConfiguration, and of the Secret in kube-system that keeps the CA for it. Schedulers that are no replicas of each other need different ones. Used with --intake=webhook.")
}

// Enabled says whether there is a webhook.
func (o *Options) Enabled() bool { return o.Mode == ModeWebhook }

// Validate reports the first option that cannot be.
func (o *Options) Validate() error {
	switch o.Mode {
	case ModeWatch:
		return nil
	case ModeWebhook:
	case modeBoth:
		return fmt.Errorf("--intake both: pods come by the watch in any case, which confirms those of the webhook and brings what it missed; use --intake webhook")
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

// advertised is the address that is listened on, or the host's own if that is any.
func (o *Options) advertised() (string, error) {
	ip := net.ParseIP(o.BindAddress)
	if ip.IsLoopback() {
		return ip.String(), nil
	}
	address, err := utilnet.ResolveBindAddress(ip)
	if err != nil {
		return "", fmt.Errorf("--intake-url is needed: no address of this host is known (%w)", err)
	}
	return address.String(), nil
}
