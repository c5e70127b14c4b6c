package experiment

import (
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/util/machine"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// The reference machine, for which default counts were chosen. Counts are larger on a machine that has
// more cores and more memory, and smaller on a machine that has less of either.
const (
	referenceCores  = 2
	referenceMemory = 23 << 30 // bytes: 24 GiB without the memory that the kernel reserves

	maxFactor = 1000
	maxCount  = 10_000_000
)

// scaleFactors maps the names of scales to factors. A small run is a quick check, a medium run takes some
// minutes, and a large run takes up to an hour.
var scaleFactors = map[string]float64{"small": 0.1, "medium": 1, "large": 5}

// Scale is the size of an experiment on this machine.
type Scale struct {
	Name string `json:"name"`
	// Factor is the factor that the user chose. Machine is the factor for the size of the
	// machine.
	Factor  float64 `json:"factor"`
	Machine float64 `json:"machine"`
}

// NewScale parses small, medium, large or a factor.
func NewScale(text string, m machine.Machine) (Scale, error) {
	factor, known := scaleFactors[text]
	if !known {
		var err error
		if factor, err = strconv.ParseFloat(text, 64); err != nil || !(factor > 0 && factor <= maxFactor) {
			return Scale{}, usage.Errorf("--scale %q: choose small, medium, large, or a factor between 0 and %d",
				text, maxFactor)
		}
	}
	size := float64(m.Cores) / referenceCores
	if m.MemoryBytes > 0 {
		size = min(size, float64(m.MemoryBytes)/referenceMemory)
	}
	if size > 0.9 && size < 1 {
		size = 1 // about the reference machine
	}
	return Scale{Name: text, Factor: factor, Machine: size}, nil
}

// count scales a count that is medium at medium scale on the reference machine. The result is rounded to
// two significant digits, and at least least.
func (s Scale) count(medium, least int) int {
	scaled := float64(medium) * s.Factor * s.Machine
	count := medium
	if scaled != float64(medium) {
		count = number.TwoDigits(scaled)
	}
	return min(max(count, least), maxCount)
}

// Count is the value of a flag for a count. If the flag is not set, the count follows from the scale.
type Count struct {
	N             int
	medium, least int
}

// ByScale returns a count that is medium at medium scale on the reference machine, and at least least.
func ByScale(medium, least int) Count { return Count{medium: medium, least: least} }

// Fixed returns a count that does not depend on the scale.
func Fixed(n int) Count { return Count{N: n} }

// AtLeast raises the count that follows from the scale to at least this one.
func (c *Count) AtLeast(least int) { c.least = max(c.least, least) }

// Set parses the value of the flag.
func (c *Count) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxCount {
		return usage.Errorf("choose 1 to %d", maxCount)
	}
	c.N = n
	return nil
}

func (c *Count) String() string {
	if c.N == 0 {
		return ""
	}
	return strconv.Itoa(c.N)
}

// Type returns the type that the help shows.
func (c *Count) Type() string { return "count" }

// Usage appends the default to the help of the flag.
func (c *Count) Usage(text string) string {
	return text + " (default by --scale: " + strconv.Itoa(c.medium) + " at medium on 2 cores and 24 GiB)"
}

// Span is the value of a flag for a duration. If the flag is not set, the duration follows from the scale,
// but not from the size of the machine.
type Span struct {
	D             time.Duration
	medium, least time.Duration
}

// SpanByScale returns a duration that is medium at medium scale, and at least least.
func SpanByScale(medium, least time.Duration) Span { return Span{medium: medium, least: least} }

// Set parses the value of the flag.
func (p *Span) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return usage.Errorf("write it like 30s or 5m; it must be more than 0")
	}
	p.D = d
	return nil
}

func (p *Span) String() string {
	if p.D == 0 {
		return ""
	}
	return p.D.String()
}

// Type returns the type that the help shows.
func (p *Span) Type() string { return "duration" }

// Usage appends the default to the help of the flag.
func (p *Span) Usage(text string) string {
	return text + " (default by --scale: " + p.medium.String() + " at medium)"
}

// Choice is the value of a flag for a text. If the flag is not set, the text follows from the scale.
type Choice struct{ Text, medium, small string }

// ChoiceByScale returns a choice that is the text medium at medium scale and above, and small below.
func ChoiceByScale(medium, small string) Choice { return Choice{medium: medium, small: small} }

// Set sets the value of the flag.
func (c *Choice) Set(text string) error {
	c.Text = text
	return nil
}

func (c *Choice) String() string { return c.Text }

// Type returns the type that the help shows.
func (c *Choice) Type() string { return "string" }

// setUnsetFlags sets the values of type Count, Span and Choice whose flags are not set.
func (s Scale) setUnsetFlags(fs *pflag.FlagSet) {
	fs.VisitAll(func(flag *pflag.Flag) {
		switch v := flag.Value.(type) {
		case *Count:
			if v.N == 0 {
				v.N = s.count(v.medium, v.least)
			}
		case *Span:
			if v.D == 0 {
				v.D = max(v.least, time.Duration(s.Factor*float64(v.medium)).Round(time.Second))
			}
		case *Choice:
			switch {
			case v.Text != "":
			case s.Factor < 1:
				v.Text = v.small
			default:
				v.Text = v.medium
			}
		}
	})
}
