//go:build race

package core

// The state machines have no goroutines, so the race detector finds nothing here that it does not find in few seeds.
const defaultSeeds = 50
