package wire

import (
	"context"
	"net"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/pacing"
)

// Old names of what has moved to packages membership and pacing, until their users are changed.
type (
	Member    = membership.Member
	Branch    = membership.Branch
	Discovery = membership.Discovery
	Addresses = membership.Addresses
	Table     = membership.Table
)

const (
	Slots      = membership.SlotCount
	GroupLabel = membership.GroupLabel
)

var ErrNameTaken = membership.ErrNameTaken

func Slot(uid types.UID) int                       { return membership.SlotOf(uid) }
func Selector(slots []int) string                  { return membership.Selector(slots) }
func Assign(before Table, replicas []string) Table { return membership.Assign(before, replicas) }
func Grow(members []Member, fanout int, key []byte) []Branch {
	return membership.Grow(members, fanout, key)
}
func Beat(now time.Time, every time.Duration) time.Time { return pacing.Beat(now, every) }
func DialPaced(ctx context.Context, n, address string) (net.Conn, error) {
	return pacing.Dial(ctx, n, address)
}
func EachBeat(ctx context.Context, every time.Duration, f func(context.Context)) {
	pacing.EachBeat(ctx, every, f)
}
func NewLeases(client kubernetes.Interface, namespace, group string, self Member) *membership.Leases {
	return membership.NewLeases(client, namespace, group, self)
}
