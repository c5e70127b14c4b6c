package experiment

import (
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/util/machine"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// The machine for which default counts are made: one with more of both gets more, one
// with less of either gets less.
const (
	usualCores  = 2
	usualMemory = 23 << 30 // bytes; what is left of 24 GiB once the kernel has its part

	maxFactor = 1000
	maxCount  = 10_000_000
)

// named scales are factors: a short form, a run of some minutes, one of up to an hour.
var named = map[string]float64{"small": 0.1, "medium": 1, "large": 5}

// Scale says how large an experiment is on this machine.
type Scale struct {
	Name string `json:"name"`
	// Factor that the user chose, and that of the machine.
	Factor  float64 `json:"factor"`
	Machine float64 `json:"machine"`
}

// NewScale reads small, medium, large or a factor, for a machine.
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
		own = 1 // not worth a difference
	}
	return Scale{Name: text, Factor: factor, Machine: own}, nil
}

// of a count at medium scale on the usual machine, to two digits.
func (s Scale) of(medium, least int) int {
	scaled := float64(medium) * s.Factor * s.Machine
	count := medium
	if scaled != float64(medium) {
		count = number.TwoDigits(scaled)
	}
	return min(max(count, least), maxCount)
}

// Count is a flag for a number that follows from the scale, unless it is given.
type Count struct {
	N             int
	medium, least int
}

// ByScale is so many at medium scale on the usual machine, and never fewer than least.
func ByScale(medium, least int) Count { return Count{medium: medium, least: least} }

// Fixed is a number that does not follow from the scale.
func Fixed(n int) Count { return Count{N: n} }

// Set reads what is given on the command line.
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

// Type is what the help shows.
func (c *Count) Type() string { return "count" }

// Usage adds to the help of the flag what it is by default.
func (c *Count) Usage(text string) string {
	return text + " (default by --scale: " + strconv.Itoa(c.medium) + " at medium on 2 cores and 24 GiB)"
}

// Span is a flag for a time that follows from the scale, unless it is given. A faster
// machine does not make it longer.
type Span struct {
	D             time.Duration
	medium, least time.Duration
}

// SpanByScale is so long at medium scale, and never shorter than least.
func SpanByScale(medium, least time.Duration) Span { return Span{medium: medium, least: least} }

// Set reads what is given on the command line.
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

// Type is what the help shows.
func (p *Span) Type() string { return "duration" }

// Usage adds to the help of the flag what it is by default.
func (p *Span) Usage(text string) string {
	return text + " (default by --scale: " + p.medium.String() + " at medium)"
}

// Choice is a flag for a text that follows from the scale, unless it is given: another one
// below medium.
type Choice struct{ Text, medium, small string }

// ChoiceByScale is one text at medium scale and beyond, and another one below.
func ChoiceByScale(medium, small string) Choice { return Choice{medium: medium, small: small} }

// Set takes what is given on the command line.
func (c *Choice) Set(text string) error {
	c.Text = text
	return nil
}

func (c *Choice) String() string { return c.Text }

// Type is what the help shows.
func (c *Choice) Type() string { return "string" }

// complete fills in what was not given.
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
