package replicasim

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"time"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/bench/scheduler/inmemory"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

const (
	calibrationNodes      = 4000 // nodes of a replica
	fewGroups, manyGroups = 1, 20
	fewOffers, manyOffers = 1, 128
	steps                 = 4 // further pods that an answer predicts for each offered node
	cyclePods             = 5000
	// leastCPU takes this number of samples, and repeats the call for minMeasurement in each.
	samples, minMeasurement = 7, 100 * time.Millisecond
)

// Calibrate measures the costs of the real code on this machine. It copies from known the costs that
// can be measured only in a real cluster.
func Calibrate(ctx context.Context, known Costs) (Costs, error) {
	c := Costs{Machine: describeMachine(), Reserve: known.Reserve, Bind: known.Bind, Watch: known.Watch}
	if err := c.calibratePod(); err != nil {
		return c, err
	}
	if err := c.calibrateAnswers(); err != nil {
		return c, err
	}
	if err := c.calibrateMessages(ctx); err != nil {
		return c, err
	}
	o := inmemory.DefaultOptions()
	o.Pods, o.Check = cyclePods, "0"
	o.Complete()
	r, err := inmemory.Run(ctx, o, progress.New(io.Discard))
	if err != nil {
		return c, fmt.Errorf("measuring a scheduler: %w", err)
	}
	c.Cycle = time.Duration(r.CPUMicrosPerPod * float64(time.Microsecond))
	return c, nil
}

// describeMachine returns the number of cores, the processor and the Go version.
func describeMachine() string {
	name := "unknown processor"
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if cpus, err := fs.CPUInfo(); err == nil && len(cpus) > 0 {
			name = cpus[0].ModelName
		}
	}
	return fmt.Sprintf("%d × %s, %s", runtime.NumCPU(), name, runtime.Version())
}

// leastCPU returns the CPU time that this process uses for a call. It measures several times and
// returns the smallest value, because disturbances only increase it.
func leastCPU(call func()) time.Duration {
	least := time.Hour
	for range samples {
		calls, started, before := 0, time.Now(), process.OwnCPUTime()
		for time.Since(started) < minMeasurement {
			call()
			calls++
		}
		least = min(least, (process.OwnCPUTime()-before)/time.Duration(calls))
	}
	return least
}

func samplePod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pod-0001234567", Namespace: "default", UID: "4b8b63a5-1f0c-4a07-a6b5-0f4bde0e21c6", ResourceVersion: "123456789",
			CreationTimestamp: metav1.Unix(1, 0), Labels: map[string]string{"app": "sample", "pod-template-hash": "6b7d5f9c4"},
		},
		Spec: corev1.PodSpec{
			SchedulerName: "default-scheduler", ServiceAccountName: "default", RestartPolicy: corev1.RestartPolicyAlways,
			Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
			}}},
			Tolerations: []corev1.Toleration{
				{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
				{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
			},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

// calibratePod measures the sizes of a pod, a reservation and its confirmation, and the cost of encoding
// and decoding a pod.
func (c *Costs) calibratePod() error {
	pod := samplePod()
	data, err := pod.Marshal()
	if err != nil {
		return err
	}
	c.PodBytes = len(data)
	c.PodEncode = leastCPU(func() { _, _ = pod.Marshal() })
	c.PodDecode = leastCPU(func() { _ = (&corev1.Pod{}).Unmarshal(data) })
	reservation, err := wire.Encode(&wire.Reservation{UID: pod.UID, Node: "node-0001234567", Profile: pod.Spec.SchedulerName})
	if err != nil {
		return err
	}
	ack, err := wire.Encode(&wire.Ack{UID: pod.UID})
	c.ReservationBytes, c.AckBytes = len(reservation), len(ack)
	return err
}

// judge filters and scores the nodes of the calibration. The score depends on the CPU requests of the
// node's pods, so that nodes with different requests are in different score buckets.
type judge struct{}

func (judge) Verdict(_ index.NodeID, s *index.State) (index.Verdict, error) {
	return index.Verdict{Fits: true, Static: 1000 - s.MilliCPU/100}, nil
}

func (judge) Topology(shape index.ShapeID) index.Topology {
	return index.Topology{Values: []int32{int32(shape) + 2}}
}
func (judge) Amounts(index.KindID) []index.Amount { return nil }
func (judge) Stale() bool                         { return false }
func (judge) ImageScore(int32) int64              { return 0 }

func (j judge) Steps(slot index.NodeID, s *index.State, most int) ([]index.Step, error) {
	all := make([]index.Step, 0, most)
	after := *s
	for range most {
		after.MilliCPU += 100
		v, _ := j.Verdict(slot, &after)
		all = append(all, index.Step{Fits: v.Fits, Static: v.Static})
	}
	return all, nil
}

func spec() index.Spec { return index.Spec{Judge: judge{}, Keys: []string{"zone"}} }

// classOverNodes returns a pod class over the nodes of one replica. The nodes have as many shapes as
// there are groups, and within each group several amounts of requests, which form score buckets.
func classOverNodes(groups int) (*index.Class, error) {
	x := index.New()
	for slot := range calibrationNodes {
		x.Place(index.NodeID(slot), index.State{Shape: index.ShapeID(slot % groups), MilliCPU: int64(slot / groups % 8 * 100)})
	}
	return x.Class("class", func() (index.Spec, error) { return spec(), nil })
}

// answerOf returns the answer for a class. It contains the names of the offered nodes, as an answer of
// package rank does.
func answerOf(class *index.Class, groups, offers int) (*wire.Answer, error) {
	a := &wire.Answer{Values: []string{wire.NoValue, ""}, ImageSets: []string{""}}
	var err error
	a.Summary, err = class.Summarize(nil, offers, steps)
	for g := range groups {
		a.Values = append(a.Values, fmt.Sprintf("zone-%d", g))
	}
	for g := range a.Summary.Groups {
		for _, tier := range a.Summary.Groups[g].Tiers {
			for o := range tier.Offers {
				tier.Offers[o].Node = index.NodeID(len(a.Names))
				a.Names = append(a.Names, fmt.Sprintf("node-%010d", len(a.Names)))
			}
		}
	}
	return a, err
}

// fitLinear fits a linear cost to measurements of answers with the three sizes.
func fitLinear(measured [3]time.Duration) Linear {
	small, manyGroupsFewOffers, large := measured[0], measured[1], measured[2]
	l := Linear{Group: max(0, (manyGroupsFewOffers-small)/(manyGroups-fewGroups))}
	l.Offer = max(0, float64(large-manyGroupsFewOffers)/float64(manyGroups*(manyOffers-fewOffers)))
	l.Base = max(0, small-l.Group-time.Duration(l.Offer))
	return l
}

// sizes are the sizes of the answers to which costs are fitted. offers is the number per group.
var sizes = [3]struct{ groups, offers int }{{fewGroups, fewOffers}, {manyGroups, fewOffers}, {manyGroups, manyOffers}}

// calibrateAnswers measures the sizes of answers, and the costs of computing, encoding, decoding and
// combining them and of choosing nodes from them.
func (c *Costs) calibrateAnswers() error {
	var summarize, fold, merge, choose [3]time.Duration
	var bytes [3]int
	for i, size := range sizes {
		class, err := classOverNodes(size.groups)
		if err != nil {
			return err
		}
		summarize[i] = leastCPU(func() { _, _ = answerOf(class, size.groups, size.offers) })
		a, err := answerOf(class, size.groups, size.offers)
		if err != nil {
			return err
		}
		data, err := wire.Encode(a)
		if err != nil {
			return err
		}
		bytes[i] = len(data)
		encode := leastCPU(func() { _, _ = wire.Encode(a) })
		decode := leastCPU(func() { _ = wire.Decode(data, &wire.Answer{}) })
		c.EncodeNanosPerByte, c.DecodeNanosPerByte = float64(encode)/float64(len(data)), float64(decode)/float64(len(data))
		// Fold modifies its input. Each call therefore decodes new answers, and the cost of decoding
		// is subtracted.
		twoAnswers := func() []*wire.Answer {
			x, y := &wire.Answer{}, &wire.Answer{}
			_, _ = wire.Decode(data, x), wire.Decode(data, y)
			return []*wire.Answer{x, y}
		}
		fold[i] = max(0, leastCPU(func() { wire.Fold(twoAnswers(), size.offers) })-2*decode) / 2
		newMerged := func() *index.Merged {
			x := &wire.Answer{}
			_ = wire.Decode(data, x)
			return index.NewMerged(spec(), nil, &x.Summary)
		}
		merge[i] = max(0, leastCPU(func() { newMerged() })-decode)
		choose[i] = max(0, leastCPU(func() { chooseNodes(newMerged(), size.offers) })-merge[i]-decode) / time.Duration(size.offers)
	}
	c.Summarize, c.Fold, c.Merge = fitLinear(summarize), fitLinear(fold), fitLinear(merge)
	c.ChooseGroup = choose[2] / manyGroups
	c.Choose = max(0, choose[0]-c.ChooseGroup)
	c.GroupBytes = (bytes[1] - bytes[0]) / (manyGroups - fewGroups)
	c.OfferBytes = (bytes[2] - bytes[1]) / (manyGroups * (manyOffers - fewOffers))
	c.GroupBytes -= c.OfferBytes
	c.AnswerBytes = bytes[0] - c.GroupBytes - c.OfferBytes
	return nil
}

// chooseNodes chooses nodes for a number of pods, until no node fits.
func chooseNodes(m *index.Merged, pods int) {
	for range pods {
		if _, outcome := m.Choose(); outcome != index.Chosen {
			return
		}
	}
}

// fixedAnswer is a replica that always returns the same answer.
type fixedAnswer struct{ answer func() *wire.Answer }

func (a fixedAnswer) Answer(context.Context, *wire.Request) *wire.Answer { return a.answer() }
func (fixedAnswer) Receive(string, *wire.Batch) error                    { return nil }
func (fixedAnswer) Connected(string)                                     { /* No state depends on connections. */ }

// serve starts a replica on loopback that answers every query with the result of answer.
func serve(ctx context.Context, name string, answer func() *wire.Answer) (membership.Member, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return membership.Member{}, err
	}
	go func() { _ = wire.Serve(ctx, listener, nil, fixedAnswer{answer}, wire.NewDialer(nil)) }()
	return membership.Member{Name: name, Address: listener.Addr().String()}, nil
}

// sampleRequest returns a query for the sample pod that requests the largest answer.
func sampleRequest() (*wire.Request, error) {
	pod, err := samplePod().Marshal()
	return &wire.Request{
		Query: &wire.Query{Pod: pod, Profile: "default-scheduler", Offers: manyOffers, Steps: steps},
		From:  "replica-0000", Patience: wire.Patience{Deadline: 10 * time.Second, Quorum: 100}, Reservations: map[string]uint64{},
	}, err
}

// calibrateMessages measures the sizes of queries and the costs of messages. It queries a replica in this
// process that returns a small and then a large answer.
func (c *Costs) calibrateMessages(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	q, err := sampleRequest()
	if err != nil {
		return err
	}
	query, err := wire.Encode(q)
	if err != nil {
		return err
	}
	member, err := wire.Encode(&membership.Branch{Member: membership.Member{Name: "replica-0000", Address: "10.0.0.1:10260"}})
	if err != nil {
		return err
	}
	// A query names each replica in its branch, and in the list of reservations that the replica must
	// have received. An entry of that list has 5 bytes in addition to the name.
	c.QueryBytes, c.MemberBytes = len(query)-len(q.Query.Pod), len(member)+len("replica-0000")+5
	class, err := classOverNodes(manyGroups)
	if err != nil {
		return err
	}
	large, err := answerOf(class, manyGroups, manyOffers)
	if err != nil {
		return err
	}
	small := &wire.Answer{Values: large.Values[:2]}
	var took [2]time.Duration
	for i, answer := range []*wire.Answer{small, large} {
		m, err := serve(ctx, "replica-0001", func() *wire.Answer { return answer })
		if err != nil {
			return err
		}
		dialer := wire.NewDialer(nil)
		sendQuery := func() { _, err = dialer.Query(ctx, &membership.Branch{Member: m}, q) }
		sendQuery() // opens the connection
		if err != nil {
			return err
		}
		took[i] = leastCPU(sendQuery)
	}
	largeBytes, smallBytes := c.AnswerBytes+manyGroups*(c.GroupBytes+manyOffers*c.OfferBytes), c.AnswerBytes
	nanosPerByte := float64(took[1]-took[0]) / float64(largeBytes-smallBytes)
	c.TransportNanosPerByte = max(0, nanosPerByte-c.EncodeNanosPerByte-c.DecodeNanosPerByte) / 2
	// took is the cost of two messages, the query and the answer, each at two ends.
	c.Message = took[0] / 4
	return nil
}
