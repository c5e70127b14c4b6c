package experiment

import (
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/util/machine"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Default counts are chosen for this machine. A machine with more cores and more memory gets
// larger counts; a machine with less of either gets smaller counts.
const (
	usualCores  = 2
	usualMemory = 23 << 30 // bytes: 24 GiB without the memory that the kernel reserves

	maxFactor = 1000
	maxCount  = 10_000_000
)

// named maps scales to factors: a quick check, a run of some minutes, a run of up to an hour.
var named = map[string]float64{"small": 0.1, "medium": 1, "large": 5}

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
	factor, known := named[text]
	if !known {
		var err error
		if factor, err = strconv.ParseFloat(text, 64); err != nil || !(factor > 0 && factor <= maxFactor) {
			return Scale{}, usage.Errorf("--scale %q: choose small, medium, large, or a factor between 0 and %d", text, maxFactor)
		}
	}
	own := float64(m.Cores) / usualCores
	if m.MemoryBytes > 0 {
		own = min(own, float64(m.MemoryBytes)/usualMemory)
	}
	if own > 0.9 && own < 1 {
		own = 1 // close enough to the reference machine
	}
	return Scale{Name: text, Factor: factor, Machine: own}, nil
}

// of scales a count for medium scale on the reference machine, rounded to two digits.
func (s Scale) of(medium, least int) int {
	scaled := float64(medium) * s.Factor * s.Machine
	count := medium
	if scaled != float64(medium) {
		count = number.TwoDigits(scaled)
	}
	return min(max(count, least), maxCount)
}

// Count is a flag for a count that follows from the scale unless it is given.
type Count struct {
	N             int
	medium, least int
}

// ByScale returns a count: medium at medium scale on the reference machine, and at least least.
func ByScale(medium, least int) Count { return Count{medium: medium, least: least} }

// Fixed returns a count that does not depend on the scale.
func Fixed(n int) Count { return Count{N: n} }

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

// Span is a flag for a duration that follows from the scale unless it is given. It does not
// depend on the machine.
type Span struct {
	D             time.Duration
	medium, least time.Duration
}

// SpanByScale returns a duration: medium at medium scale, and at least least.
func SpanByScale(medium, least time.Duration) Span { return Span{medium: medium, least: least} }

// Set parses the value of the flag.
func (p *Span) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return usage.Errorf("write it like 30s or 5m, more than 0")
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

// Choice is a flag for a text that follows from the scale unless it is given.
type Choice struct{ Text, medium, small string }

// ChoiceByScale returns a choice: medium at medium scale and above, small below.
func ChoiceByScale(medium, small string) Choice { return Choice{medium: medium, small: small} }

// Set sets the value of the flag.
func (c *Choice) Set(text string) error {
	c.Text = text
	return nil
}

func (c *Choice) String() string { return c.Text }

// Type returns the type that the help shows.
func (c *Choice) Type() string { return "string" }

// complete sets the flags that were not given.
func (s Scale) complete(fs *pflag.FlagSet) {
	fs.VisitAll(func(flag *pflag.Flag) {
		switch v := flag.Value.(type) {
		case *Count:
			if v.N == 0 {
				v.N = s.of(v.medium, v.least)
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
