package storedata

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Received is a snapshot that a store is sending.
type Received struct {
	// Revision is that of the snapshot; 0 if the store does not state it, as etcd.
	Revision int64
	content  io.ReadCloser
}

// Receive requests a snapshot from a store. The caller closes it.
func Receive(ctx context.Context, client *clientv3.Client) (*Received, error) {
	response, err := client.SnapshotWithVersion(ctx)
	if err != nil {
		return nil, fmt.Errorf("requesting a snapshot from the store: %w", err)
	}
	return &Received{Revision: response.Header.GetRevision(), content: response.Snapshot}, nil
}

// Close ends the transfer.
func (r *Received) Close() { _ = r.content.Close() }

// CopyTo copies the snapshot and verifies the checksum at its end. It returns the number of bytes.
func (r *Received) CopyTo(w io.Writer) (int64, error) {
	ending := newCheckedEnd()
	size, err := io.Copy(io.MultiWriter(w, ending), r.content)
	if err == nil {
		err = ending.verify()
	}
	if err != nil {
		return size, fmt.Errorf("receiving the snapshot of the store: %w", err)
	}
	return size, nil
}

// checkedEnd verifies that data ends with the SHA-256 of the bytes before, as each snapshot of a store does.
type checkedEnd struct {
	sum  hash.Hash
	tail []byte // the last bytes, at most the size of a checksum
}

func newCheckedEnd() *checkedEnd { return &checkedEnd{sum: sha256.New()} }

// Write implements [io.Writer].
func (c *checkedEnd) Write(p []byte) (int, error) {
	c.tail = append(c.tail, p...)
	if before := len(c.tail) - sha256.Size; before > 0 {
		c.sum.Write(c.tail[:before])
		c.tail = c.tail[:copy(c.tail, c.tail[before:])]
	}
	return len(p), nil
}

func (c *checkedEnd) verify() error {
	if !bytes.Equal(c.tail, c.sum.Sum(nil)) {
		return errors.New("its checksum is wrong")
	}
	return nil
}
