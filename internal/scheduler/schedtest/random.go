package schedtest

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"
)

var seed = flag.Uint64("oracle.seed", 0, "seed of the first random cluster; 0 chooses a new seed")

// Seed returns the seed of the flag, or a new seed.
func Seed() uint64 {
	if *seed != 0 {
		return *seed
	}
	return uint64(time.Now().UnixNano())
}

// NewRandom returns a random generator with the seed of the flag, or with a new seed, and logs the
// seed.
func NewRandom(t *testing.T) *rand.Rand {
	seed := Seed()
	t.Logf("to repeat this test: -oracle.seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
