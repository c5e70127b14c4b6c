package rank

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	schedmetrics "k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// nominatedNode is a node with nominated pods for which a pod has to leave room.
type nominatedNode struct {
	*cache.Node
	// load is the sum of their requests, and pods is their number.
	load request
	pods int32
}

// nominatedNodes returns the nodes where a pod has to leave room for nominated pods. The result is
// valid until the next call.
func (r *Ranker) nominatedNodes(pod *v1.Pod) []nominatedNode {
	r.nominatedNodesBuffer = r.nominatedNodesBuffer[:0]
	for name, nominees := range r.Nominations.ByNode() {
		if load, pods := requestedByNominated(nominees, pod); pods > 0 {
			if n := r.Cluster.Lookup(name); n != nil {
				r.nominatedNodesBuffer = append(r.nominatedNodesBuffer, nominatedNode{n, load, pods})
			}
		}
	}
	return r.nominatedNodesBuffer
}

// withNominated returns the state of a node as if its nominated pods ran there, as far as
// [request.lacks] reads it.
func (p *nominatedNode) withNominated(alone index.State) index.State {
	alone.MilliCPU += p.load.milliCPU
	alone.Memory += p.load.memory
	alone.EphemeralStorage += p.load.storage
	alone.Pods += p.pods
	return alone
}

// lacking returns what a node lacks for a pod of the class without the nominated pods, and with
// them. It returns false if arithmetic does not decide.
func (cl *Class) lacking(p *nominatedNode) (alone, beside lack, decided bool) {
	shape := cl.shapes[p.Shape]
	if !cl.simple || cl.dependsOnPods() || shape == nil {
		return 0, 0, false
	}
	state := cl.cluster.Names.State(p.Node)
	with := p.withNominated(state)
	return cl.request.lacks(&shape.free, &state), cl.request.lacks(&shape.free, &with), true
}

// barredByNominated returns the nodes that do not fit together with their nominated pods, out of
// nodes that all fit without them.
func (cl *Class) barredByNominated(ctx context.Context, pod *v1.Pod, places []nominatedNode) ([]index.Nominated, error) {
	var barred []index.Nominated
	for i := range places {
		p := &places[i]
		if _, beside, decided := cl.lacking(p); decided {
			if beside != 0 {
				barred = append(barred, index.Nominated{Node: p.ID, Barred: true})
			}
			continue
		}
		switch status := cl.fitsWithNominated(ctx, pod, p.Node); {
		case status.IsRejected():
			barred = append(barred, index.Nominated{Node: p.ID, Barred: true})
		case !status.IsSuccess():
			return nil, status.AsError()
		}
	}
	return barred, nil
}

// refusedByNominated returns the statuses of nodes, for a pod that fits nowhere, where the
// nominated pods change the reason.
func (cl *Class) refusedByNominated(ctx context.Context, pod *v1.Pod, places []nominatedNode) (map[index.NodeID]*fwk.Status, error) {
	refused := map[index.NodeID]*fwk.Status{}
	var unknown []*nominatedNode
	for i := range places {
		p := &places[i]
		alone, beside, decided := cl.lacking(p)
		switch {
		case decided && alone == beside:
			// Every plugin decides the same with and without the nominated pods.
		case decided && alone == 0 && cl.shapes[p.Shape].fits:
			status, err := cl.refusedByOneNominated(ctx, pod, p, beside)
			if err != nil {
				return nil, err
			}
			if status != nil {
				refused[p.ID] = status
			}
		default:
			unknown = append(unknown, p)
		}
	}
	statuses := make([]*fwk.Status, len(unknown))
	cl.profile.Framework.Parallelizer().Until(ctx, len(unknown), func(i int) {
		statuses[i] = cl.fitsWithNominated(ctx, pod, unknown[i].Node)
	}, schedmetrics.Filter)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for i, p := range unknown {
		if statuses[i].IsRejected() {
			refused[p.ID] = statuses[i]
		} else if !statuses[i].IsSuccess() {
			return nil, statuses[i].AsError()
		}
	}
	return refused, nil
}

// refusedByOneNominated returns the status of a node that would fit without its nominated pods. The
// status depends only on what the node lacks, so plugins run once for each lack.
func (cl *Class) refusedByOneNominated(ctx context.Context, pod *v1.Pod, p *nominatedNode, lacking lack) (*fwk.Status, error) {
	if status := cl.lackStatuses[lacking]; status != nil {
		return status, nil
	}
	status := cl.fitsWithNominated(ctx, pod, p.Node)
	if status.IsRejected() {
		cl.lackStatuses[lacking] = status
		return status, nil
	}
	// If it fits, its nominated pods have changed since.
	return nil, status.AsError()
}
