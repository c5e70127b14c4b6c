package rank

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	schedmetrics "k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// nominatedNode is a node with nominated pods for which the pod to schedule must leave room.
type nominatedNode struct {
	*cache.Node
	// load is the sum of the requests of these nominated pods, and pods is their number.
	load usage
	pods int32
}

// nominatedNodes returns the nodes on which a pod must leave room for nominated pods. The result is valid
// until the next call.
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

// withNominated returns the state of a node as if its nominated pods ran there. It changes only the fields
// that [request.lacks] reads.
func (p *nominatedNode) withNominated(alone index.State) index.State {
	alone.MilliCPU += p.load.milliCPU
	alone.Memory += p.load.memory
	alone.EphemeralStorage += p.load.storage
	alone.Pods += p.pods
	return alone
}

// lacking returns the resources that a node lacks for a pod of the class: alone without its nominated pods,
// beside with them. It returns false if the plugins have to run to find out.
func (cl *Class) lacking(p *nominatedNode) (alone, beside lack, decided bool) {
	shape := cl.shapes[p.Shape]
	if !cl.simple || cl.dependsOnOtherPods() || shape == nil {
		return 0, 0, false
	}
	state := cl.cluster.Index.StateOf(p.ID)
	with := p.withNominated(state)
	return cl.request.lacks(&shape.allocatable, &state), cl.request.lacks(&shape.allocatable, &with), true
}

// barredByNominated returns those of the given nodes on which the pod does not fit together with their
// nominated pods. The pod must fit on all of them without the nominated pods.
func (cl *Class) barredByNominated(ctx context.Context, pod *v1.Pod, nodes []nominatedNode) ([]index.Nominated, error) {
	var barred []index.Nominated
	for i := range nodes {
		p := &nodes[i]
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

// refusedByNominated returns, for a pod that fits on no node, the statuses of the nodes for which nominated
// pods change the reason.
func (cl *Class) refusedByNominated(ctx context.Context, pod *v1.Pod, nodes []nominatedNode) (map[index.NodeID]*fwk.Status, error) {
	refused := map[index.NodeID]*fwk.Status{}
	var unknown []*nominatedNode
	for i := range nodes {
		p := &nodes[i]
		alone, beside, decided := cl.lacking(p)
		switch {
		case decided && alone == beside:
			// The nominated pods change no plugin's result.
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

// refusedByOneNominated returns the status of one node that would fit without its nominated pods. The status
// depends only on the set of resources that the node lacks, so plugins run once for each such set.
func (cl *Class) refusedByOneNominated(ctx context.Context, pod *v1.Pod, p *nominatedNode, lacking lack) (*fwk.Status, error) {
	if status := cl.lackStatuses[lacking]; status != nil {
		return status, nil
	}
	status := cl.fitsWithNominated(ctx, pod, p.Node)
	if status.IsRejected() {
		cl.lackStatuses[lacking] = status
		return status, nil
	}
	// If the pod fits, the nominated pods have changed meanwhile.
	return nil, status.AsError()
}
