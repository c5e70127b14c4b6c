package membership

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

// TestLeaseDecidesWhoLeads checks claims of leadership against a Lease.
func TestLeaseDecidesWhoLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := func(identity string, transitions int32) *coordinationv1.Lease {
			return &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "lock"},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To(identity), LeaseTransitions: ptr.To(transitions)},
			}
		}
		client := fake.NewClientset(lease(HolderIdentity("a", "1-2"), 4))
		e := NewLeaseElection(client, "kube-system", "lock")
		check := func(leader string, term int64, want error) {
			t.Helper()
			if err := e.Check(t.Context(), leader, term); !errors.Is(err, want) {
				t.Errorf("Check(%s, %d) = %v, want %v", leader, term, err, want)
			}
		}
		check("a", 5, nil)
		check("a", 6, ErrNotElected)
		check("a", 1<<38-1, ErrNotElected)
		check("b", 5, ErrNotElected)
		check("b", 4, ErrReplaced)
		// The Lease changes just after it was read.
		if _, err := client.CoordinationV1().Leases("kube-system").Update(t.Context(), lease(HolderIdentity("with_underscore", "3"), 5), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		check("with_underscore", 6, nil)
		check("with", 6, ErrNotElected)
		check("a", 5, ErrReplaced)
		if term, err := e.Term(t.Context(), "with_underscore"); err != nil || term != 6 {
			t.Errorf("Term() of the holder = %d, %v, want 6", term, err)
		}
		if _, err := e.Term(t.Context(), "a"); !errors.Is(err, ErrNotElected) {
			t.Errorf("Term() of another replica = %v, want %v", err, ErrNotElected)
		}
		// Nobody holds the Lease.
		if _, err := client.CoordinationV1().Leases("kube-system").Update(t.Context(), lease("", 5), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(electionReadInterval)
		check("with_underscore", 6, ErrNotElected)
	})
}

// TestClaimsCauseFewReads makes many wrong claims. Each must be checked, with few requests.
func TestClaimsCauseFewReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		e := &LeaseElection{read: func(context.Context) (Holder, error) {
			reads++
			return Holder{"a", 1}, nil
		}}
		start := time.Now()
		for term := int64(2); time.Since(start) < 10*time.Second; term++ {
			if err := e.Check(t.Context(), "b", term); !errors.Is(err, ErrNotElected) {
				t.Fatalf("Check() = %v, want %v", err, ErrNotElected)
			}
		}
		if most := int(10*time.Second/electionReadInterval) + 2; reads > most {
			t.Errorf("%d reads in 10 s, want at most %d", reads, most)
		}
	})
}

// TestClaimIsNotAcceptedIfTheLeaseCannotBeRead checks that a failure to read the Lease is an error of
// its own, so that the caller tries again.
func TestClaimIsNotAcceptedIfTheLeaseCannotBeRead(t *testing.T) {
	unreachable := errors.New("unreachable")
	e := &LeaseElection{read: func(context.Context) (Holder, error) { return Holder{}, unreachable }}
	for range 2 {
		if err := e.Check(t.Context(), "a", 1); !errors.Is(err, unreachable) {
			t.Errorf("Check() = %v, want %v", err, unreachable)
		}
	}
}

// TestClockBoundsTerms checks the terms of replicas without leader election.
func TestClockBoundsTerms(t *testing.T) {
	now := time.Now()
	for term, valid := range map[int64]bool{now.Unix(): true, now.Add(maxClockSkew / 2).Unix(): true, now.Add(2 * maxClockSkew).Unix(): false, 1<<38 - 1: false} {
		if err := (ClockElection{}).Check(t.Context(), "a", term); (err == nil) != valid {
			t.Errorf("Check() of term %d = %v, want valid: %v", term, err, valid)
		}
	}
}
