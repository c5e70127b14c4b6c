package rank

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	schedmetrics "k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// place is a node with nominated pods that a pod has to leave room for.
type nominatedNode struct {
	*cache.Node
	// load is what they request, and pods how many they are.
	load request
	pods int32
}

// places are the nodes where a pod has to leave room for others. They are valid until
// the next call.
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

// beside is the state of a node once the pods run there that are nominated to it, as
// far as [request.lacks] looks at it.
func (p *nominatedNode) withNominated(alone index.State) index.State {
	alone.MilliCPU += p.load.milliCPU
	alone.Memory += p.load.memory
	alone.EphemeralStorage += p.load.storage
	alone.Pods += p.pods
	return alone
}

// squeeze is what a place lacks for a pod of the class without the nominated pods, and
// with them; false if that cannot be told, or is not all that counts.
func (cl *Class) lacking(p *nominatedNode) (alone, beside lack, known bool) {
	shape := cl.shapes[p.Shape]
	if !cl.simple || cl.dependsOnPods() || shape == nil {
		return 0, 0, false
	}
	state := cl.cluster.Names.State(p.Node)
	with := p.withNominated(state)
	return cl.request.lacks(&shape.free, &state), cl.request.lacks(&shape.free, &with), true
}

// barred are those of some places, all of which would fit but for the pods nominated to
// them, that do not fit beside these.
func (cl *Class) barredByNominated(ctx context.Context, pod *v1.Pod, places []nominatedNode) ([]index.Around, error) {
	var barred []index.Around
	for i := range places {
		p := &places[i]
		if _, beside, known := cl.lacking(p); known {
			if beside != 0 {
				barred = append(barred, index.Around{Slot: p.ID, Barred: true})
			}
			continue
		}
		switch status := cl.fitsWithNominated(ctx, pod, p.Node); {
		case status.IsRejected():
			barred = append(barred, index.Around{Slot: p.ID, Barred: true})
		case !status.IsSuccess():
			return nil, status.AsError()
		}
	}
	return barred, nil
}

// refused says of places why a pod, which fits nowhere, does not fit there, where the
// nominated pods make a difference to that.
func (cl *Class) refusedByNominated(ctx context.Context, pod *v1.Pod, places []nominatedNode) (map[index.Slot]*fwk.Status, error) {
	refused := map[index.Slot]*fwk.Status{}
	var unknown []*nominatedNode
	for i := range places {
		p := &places[i]
		alone, beside, known := cl.lacking(p)
		switch {
		case known && alone == beside:
			// Every plugin says the same with them and without.
		case known && alone == 0 && cl.shapes[p.Shape].fits:
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
	said := make([]*fwk.Status, len(unknown))
	cl.profile.Framework.Parallelizer().Until(ctx, len(unknown), func(i int) {
		said[i] = cl.fitsWithNominated(ctx, pod, unknown[i].Node)
	}, schedmetrics.Filter)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for i, p := range unknown {
		if said[i].IsRejected() {
			refused[p.ID] = said[i]
		} else if !said[i].IsSuccess() {
			return nil, said[i].AsError()
		}
	}
	return refused, nil
}

// refusedBeside is what plugins say of a place that would fit without the nominated
// pods. They say it by what is lacking, so they are asked once for each.
func (cl *Class) refusedByOneNominated(ctx context.Context, pod *v1.Pod, p *nominatedNode, lacking lack) (*fwk.Status, error) {
	if said := cl.lackStatuses[lacking]; said != nil {
		return said, nil
	}
	said := cl.fitsWithNominated(ctx, pod, p.Node)
	if said.IsRejected() {
		cl.lackStatuses[lacking] = said
		return said, nil
	}
	// If it fits, somebody has been nominated elsewhere meanwhile.
	return nil, said.AsError()
}
