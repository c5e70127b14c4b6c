package storedata

import (
	"bytes"
	"crypto/sha256"
	"testing"
)

// TestEndOfStoreSnapshotIsVerified writes a snapshot of a store in pieces of several sizes.
func TestEndOfStoreSnapshotIsVerified(t *testing.T) {
	data := []byte("the content of a store")
	sum := sha256.Sum256(data)
	good := append(bytes.Clone(data), sum[:]...)
	for size := 1; size <= len(good); size++ {
		for _, c := range []struct {
			data []byte
			ok   bool
		}{{good, true}, {good[:len(good)-1], false}, {append([]byte("x"), good...), false}} {
			end := newCheckedEnd()
			for rest := c.data; len(rest) > 0; rest = rest[min(size, len(rest)):] {
				if _, err := end.Write(rest[:min(size, len(rest))]); err != nil {
					t.Fatal(err)
				}
			}
			if err := end.verify(); (err == nil) != c.ok {
				t.Errorf("verify() of %d bytes in pieces of %d = %v, want success: %v", len(c.data), size, err, c.ok)
			}
		}
	}
}
