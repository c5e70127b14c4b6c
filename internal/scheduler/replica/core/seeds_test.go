//go:build !race

package core

// defaultSeeds is the number of seeds that a test runs.
const defaultSeeds = 300
