package storecluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/util/storemembers"
	"github.com/k8s-1m/k8s-1m/test/store-cluster/network"
)

// fault is a kind of fault of one member. begin injects it, and end repairs the member; it may take longer than the hold
// time if begin does.
type fault struct {
	name string
	// weight is how often the fault occurs in a deck of faults.
	weight int
	// leader selects the victim: the leader, a follower, or any member.
	leader choice
	// needsNetwork is true if members must be in network namespaces.
	needsNetwork bool
	// last is true if other members must be repaired before this one.
	last       bool
	begin, end func(*victim, context.Context) error
}

type choice int

const (
	anyMember choice = iota
	theLeader
	aFollower
)

// victim is a member with a fault.
type victim struct {
	*storemembers.Member
	number  int // of the member in the cluster
	cluster *storemembers.Cluster
	network *network.Network // nil on loopback
	random  *rand.Rand
	kills   int
	stop    chan struct{} // ends what begin has left running, if it is not nil
	stopped chan error
}

// faults are all kinds of faults. In a deck, more than half of them are kills.
var faults = []fault{
	{name: "kill of the leader", weight: 6, leader: theLeader, begin: (*victim).kill, end: (*victim).restart},
	{name: "kill of a follower", weight: 4, leader: aFollower, begin: (*victim).kill, end: (*victim).restart},
	{name: "kill", weight: 4, begin: (*victim).kill, end: (*victim).restart},
	{name: "kill during the start", weight: 3, begin: (*victim).kill, end: (*victim).restartTwice},
	{name: "SIGTERM of the leader", weight: 1, leader: theLeader, begin: (*victim).terminate, end: (*victim).restart},
	{name: "SIGTERM of a follower", weight: 1, leader: aFollower, begin: (*victim).terminate, end: (*victim).restart},
	{name: "suspension of the leader", weight: 1, leader: theLeader, begin: (*victim).pause, end: (*victim).resume},
	{name: "suspension of a follower", weight: 1, leader: aFollower, begin: (*victim).pause, end: (*victim).resume},
	{name: "replacement", weight: 1, last: true, begin: (*victim).kill, end: (*victim).replace},
	{name: "partition of the leader", weight: 1, leader: theLeader, needsNetwork: true, begin: (*victim).isolate, end: (*victim).heal},
	{name: "partition of a follower", weight: 1, leader: aFollower, needsNetwork: true, begin: (*victim).isolate, end: (*victim).heal},
	{name: "leader does not hear others", weight: 1, leader: theLeader, needsNetwork: true, begin: (*victim).deafen, end: (*victim).heal},
	{name: "others do not hear the leader", weight: 1, leader: theLeader, needsNetwork: true, begin: (*victim).mute, end: (*victim).heal},
	{name: "lost packets and delays", weight: 1, needsNetwork: true, begin: (*victim).slow, end: (*victim).endSlow},
}

// deck deals faults: each kind as often as its weight, in random order, and then again.
type deck struct {
	random      *rand.Rand
	withNetwork bool
	left        []fault
}

func (d *deck) next() fault {
	if len(d.left) == 0 {
		for _, f := range faults {
			if !f.needsNetwork || d.withNetwork {
				d.left = append(d.left, slices.Repeat([]fault{f}, f.weight)...)
			}
		}
		d.random.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
	}
	f := d.left[0]
	d.left = d.left[1:]
	return f
}

func (v *victim) kill(context.Context) error {
	v.Kill()
	v.kills++
	return nil
}

func (v *victim) restart(context.Context) error { return v.Start() }

// restartTwice kills the member again while it starts.
func (v *victim) restartTwice(ctx context.Context) error {
	if err := v.Start(); err != nil {
		return err
	}
	time.Sleep(time.Duration(v.random.IntN(300)) * time.Millisecond)
	return orElse(v.kill(ctx), v.Start)
}

func (v *victim) terminate(context.Context) error { return v.Stop() }

func (v *victim) pause(context.Context) error {
	v.Pause()
	return nil
}

func (v *victim) resume(context.Context) error {
	v.Resume()
	return nil
}

// replace replaces the member by one with an empty disk. It repeats a change of the members that the cluster refuses.
func (v *victim) replace(ctx context.Context) error {
	for {
		err := v.cluster.Replace(ctx, v.Member)
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (v *victim) isolate(context.Context) error { return v.network.Cut(v.network.Isolate(v.number)...) }

func (v *victim) deafen(context.Context) error { return v.network.Cut(v.network.Deaf(v.number)...) }

func (v *victim) mute(context.Context) error { return v.network.Cut(v.network.Mute(v.number)...) }

func (v *victim) heal(context.Context) error { return v.network.Heal() }

// slow cuts the paths of the member for most of the time, in short pulses. The kernels send lost packets again, later and
// later, so messages arrive with delays.
func (v *victim) slow(context.Context) error {
	v.stop, v.stopped = make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			err := v.isolate(context.Background())
			time.Sleep(60 * time.Millisecond)
			err = orElse(err, v.network.Heal)
			select {
			case <-v.stop:
				v.stopped <- err
				return
			case <-time.After(20 * time.Millisecond):
			}
			if err != nil {
				v.stopped <- err
				return
			}
		}
	}()
	return nil
}

func (v *victim) endSlow(context.Context) error {
	close(v.stop)
	return <-v.stopped
}

// orElse returns err, or the result of next if err is nil.
func orElse(err error, next func() error) error {
	if err != nil {
		return err
	}
	return next()
}

// injector injects faults.
type injector struct {
	cluster *storemembers.Cluster
	network *network.Network
	random  *rand.Rand
	deck    *deck
	kills   int
	counts  map[string]int
}

// inject injects one fault, or several at the same time, but in no more members than may fail. It repairs them, and waits
// until all members serve. It returns what it did.
func (i *injector) inject(ctx context.Context) (what string, err error) {
	var injected []fault
	var victims []*victim
	for range 1 + i.random.IntN(i.cluster.Tolerated()) {
		f := i.deck.next()
		v, err := i.choose(ctx, f.leader, victims)
		if err != nil {
			return what, err
		}
		what += fmt.Sprintf("%s: %s; ", f.name, v.Name)
		i.counts[f.name]++
		if err := f.begin(v, ctx); err != nil {
			return what, err
		}
		injected, victims = append(injected, f), append(victims, v)
	}
	time.Sleep(time.Duration(i.random.IntN(800)) * time.Millisecond)
	return what, i.repair(ctx, injected, victims)
}

// repair ends the faults of the victims, and waits until all members serve.
func (i *injector) repair(ctx context.Context, injected []fault, victims []*victim) error {
	for _, last := range []bool{false, true} {
		for n, f := range injected {
			if f.last != last {
				continue
			}
			if err := f.end(victims[n], ctx); err != nil {
				return err
			}
			i.kills += victims[n].kills
		}
		for _, m := range i.cluster.Members {
			if !m.Running() {
				continue // its repair is next
			}
			if err := m.AwaitHealthy(ctx); err != nil {
				return err
			}
		}
	}
	return i.cluster.AwaitHealthy(ctx)
}

// choose returns a member that is not among the victims. If the wanted one is, for example because the leader is not known
// yet, it takes another.
func (i *injector) choose(ctx context.Context, wanted choice, taken []*victim) (*victim, error) {
	leader, err := i.cluster.Leader(ctx)
	if err != nil {
		return nil, err
	}
	var suitable, free []int
	for n, m := range i.cluster.Members {
		if slices.ContainsFunc(taken, func(v *victim) bool { return v.Member == m }) {
			continue
		}
		free = append(free, n)
		if wanted == anyMember || (m == leader) == (wanted == theLeader) {
			suitable = append(suitable, n)
		}
	}
	if len(suitable) == 0 {
		suitable = free
	}
	n := suitable[i.random.IntN(len(suitable))]
	return &victim{Member: i.cluster.Members[n], number: n, cluster: i.cluster, network: i.network, random: i.random}, nil
}
