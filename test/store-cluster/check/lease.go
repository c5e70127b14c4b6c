package check

import "fmt"

// Lease is a lease with one key.
type Lease struct {
	Key string
	// Attached is the time at which the put of the key was acknowledged; 0 if it was not.
	Attached int64
	// AliveUntil is the time until which the lease must live: the time at which the grant, or the last renewal that was
	// answered, was sent, and the TTL.
	AliveUntil int64
	// RevokeCall and RevokeReturn are the times of the revocation; 0 if it was not sent, or not answered.
	RevokeCall, RevokeReturn int64
}

// KeyRead is a linearizable read of the key of a lease.
type KeyRead struct {
	Key          string
	Call, Return int64
	Exists       bool
}

// Leases checks that keys exist while their leases live, and no longer after the revocation was acknowledged.
func Leases(leases []Lease, reads []KeyRead) error {
	byKey := map[string]Lease{}
	for _, l := range leases {
		byKey[l.Key] = l
	}
	for _, r := range reads {
		l, known := byKey[r.Key]
		mayBeRevoked := l.RevokeCall > 0 && l.RevokeCall < r.Return
		switch {
		case !known:
		case !r.Exists && l.Attached > 0 && l.Attached < r.Call && r.Return <= l.AliveUntil && !mayBeRevoked:
			return fmt.Errorf("key %s is gone at %.3fs, but its lease lives until %.3fs", r.Key, seconds(r.Return), seconds(l.AliveUntil))
		case r.Exists && l.RevokeReturn > 0 && l.RevokeReturn < r.Call:
			return fmt.Errorf("key %s exists at %.3fs, but the revocation of its lease was acknowledged at %.3fs", r.Key, seconds(r.Call), seconds(l.RevokeReturn))
		}
	}
	return nil
}

func seconds(nanos int64) float64 { return float64(nanos) / 1e9 }
