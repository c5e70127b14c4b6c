// Package claim decides which node has which prefix. A claim is a record whose key is the prefix, so that two nodes cannot
// both create it: the store of the records decides, not a controller that must know all nodes. There is no limit on their
// number, and no node reads more than its own records.
//
// claim.go has the rules, which are pure; directory.go keeps the records in files, which nodes of one machine share;
// kubernetes.go keeps them in Leases.
package claim

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/address"
)

// DefaultReuseAfter is the time for which a prefix that was released, or whose node was deleted, is not given to another
// node. Meanwhile, connections to the earlier pods end, and caches forget their addresses.
const DefaultReuseAfter = time.Hour

// Claim is the record of a prefix.
type Claim struct {
	Node string `json:"node"`
	// Since is when the node got the prefix.
	Since time.Time `json:"since"`
	// Released is when the node gave it back, or was found to be deleted; zero while it is held.
	Released time.Time `json:"released,omitzero"`
}

// HeldError says that another node has a prefix.
type HeldError struct {
	Prefix netip.Prefix
	Claim  Claim
	// Free is when another node may get it; zero if it is held.
	Free time.Time
}

func (e *HeldError) Error() string {
	if e.Free.IsZero() {
		return fmt.Sprintf("prefix %s is claimed by node %s since %s; give this node another prefix, or release that claim",
			e.Prefix, e.Claim.Node, e.Claim.Since.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("prefix %s was released by node %s at %s, and is not given to another node before %s",
		e.Prefix, e.Claim.Node, e.Claim.Released.UTC().Format(time.RFC3339), e.Free.UTC().Format(time.RFC3339))
}

// Store keeps claims. Errors other than those of the methods' descriptions are those of the store.
type Store interface {
	// Update calls change with the claim of a prefix, or nil if there is none, and stores its result: a claim, or nil to
	// remove it. If change returns an error, nothing is stored. If somebody else changes the claim at the same time, Update
	// calls change again.
	Update(ctx context.Context, prefix netip.Prefix, change func(*Claim) (*Claim, error)) error
	// Exists reports whether a node exists. A store that does not know nodes says true.
	Exists(ctx context.Context, node string) (bool, error)
	// Now is the time.
	Now() time.Time
}

// Take claims a prefix for a node. The error is a [HeldError] if another node has it.
func Take(ctx context.Context, store Store, prefix netip.Prefix, node string, reuseAfter time.Duration) error {
	gone := ""
	for {
		var held *HeldError
		err := store.Update(ctx, prefix, func(c *Claim) (*Claim, error) {
			held = nil
			next, refused := decide(c, prefix, node, gone, store.Now(), reuseAfter)
			held = refused
			if refused != nil && next == nil {
				return nil, refused
			}
			return next, nil
		})
		switch {
		case held == nil:
			return err
		case err != nil && !errors.Is(err, held):
			return err
		case !held.Free.IsZero() || held.Claim.Node == gone:
			return held
		}
		exists, err := store.Exists(ctx, held.Claim.Node)
		if err != nil {
			return errors.Join(held, err)
		}
		if exists {
			return held
		}
		// The claim is marked as released, once.
		gone = held.Claim.Node
	}
}

// decide returns the claim to store, or nil to leave it, and why the node does not get the prefix. gone is a node that does not
// exist any more.
func decide(c *Claim, prefix netip.Prefix, node, gone string, now time.Time, reuseAfter time.Duration) (*Claim, *HeldError) {
	switch {
	case c == nil:
		return &Claim{Node: node, Since: now}, nil
	case c.Node == node && c.Released.IsZero():
		return c, nil
	case c.Node == node:
		return &Claim{Node: node, Since: now}, nil
	case c.Released.IsZero() && c.Node == gone:
		released := *c
		released.Released = now
		return &released, &HeldError{Prefix: prefix, Claim: released, Free: now.Add(reuseAfter)}
	case c.Released.IsZero():
		return nil, &HeldError{Prefix: prefix, Claim: *c}
	case now.Sub(c.Released) < reuseAfter:
		return nil, &HeldError{Prefix: prefix, Claim: *c, Free: c.Released.Add(reuseAfter)}
	}
	return &Claim{Node: node, Since: now}, nil
}

// Release gives back a prefix. It does nothing if the node does not hold it.
func Release(ctx context.Context, store Store, prefix netip.Prefix, node string) error {
	errNothing := errors.New("nothing to release")
	err := store.Update(ctx, prefix, func(c *Claim) (*Claim, error) {
		if c == nil || c.Node != node || !c.Released.IsZero() {
			return nil, errNothing
		}
		released := *c
		released.Released = store.Now()
		return &released, nil
	})
	if errors.Is(err, errNothing) {
		return nil
	}
	return err
}

// maxAttempts bounds the candidates that a node tries. With a million nodes in a /64, the first one is taken with a
// probability of 1 in 4,300.
const maxAttempts = 64

// Assign claims a prefix of a pool for a node: the one that it had before, if that is valid and in the pool, otherwise the
// first of its candidates that nobody holds.
func Assign(ctx context.Context, store Store, pool netip.Prefix, length int, node string, before netip.Prefix, reuseAfter time.Duration) (netip.Prefix, error) {
	if before.IsValid() && before.Bits() == length && pool.Contains(before.Addr()) {
		err := Take(ctx, store, before, node, reuseAfter)
		var held *HeldError
		if !errors.As(err, &held) {
			return before, err
		}
	}
	for attempt := range maxAttempts {
		candidate, err := address.Candidate(pool, length, node, attempt)
		if err != nil {
			return netip.Prefix{}, err
		}
		err = Take(ctx, store, candidate, node, reuseAfter)
		var held *HeldError
		if !errors.As(err, &held) {
			return candidate, err
		}
	}
	return netip.Prefix{}, fmt.Errorf("pool %s: the %d candidates of node %s are taken; use a larger pool", pool, maxAttempts, node)
}
