package scheduler

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// place is a node with nominated pods that a pod has to leave room for.
type place struct {
	*node
	// load is what they request, and pods how many they are.
	load request
	pods int32
}

// places are the nodes where a pod has to leave room for others. They are valid until
// the next call.
func (r *ranker) places(pod *v1.Pod) []place {
	r.crowd = r.crowd[:0]
	for name, nominees := range r.nominations.byNode() {
		if load, pods := ahead(nominees, pod); pods > 0 {
			if n := r.cluster.present(name); n != nil {
				r.crowd = append(r.crowd, place{n, load, pods})
			}
		}
	}
	return r.crowd
}

// beside is the state of a node once the pods run there that are nominated to it, as
// far as [request.lacks] looks at it.
func (p *place) beside(alone index.State) index.State {
	alone.MilliCPU += p.load.milliCPU
	alone.Memory += p.load.memory
	alone.EphemeralStorage += p.load.storage
	alone.Pods += p.pods
	return alone
}

// squeeze is what a place lacks for a pod of the class without the nominated pods, and
// with them; false if that cannot be told, or is not all that counts.
func (cl *class) squeeze(p *place) (alone, beside lack, known bool) {
	shape := cl.shapes[p.shape]
	if !cl.simple || cl.relational() || shape == nil {
		return 0, 0, false
	}
	state := cl.cluster.names.state(p.node)
	with := p.beside(state)
	return cl.request.lacks(&shape.free, &state), cl.request.lacks(&shape.free, &with), true
}

// barred are those of some places, all of which would fit but for the pods nominated to
// them, that do not fit beside these.
func (cl *class) barred(ctx context.Context, pod *v1.Pod, places []place) ([]index.Around, error) {
	var barred []index.Around
	for i := range places {
		p := &places[i]
		if _, beside, known := cl.squeeze(p); known {
			if beside != 0 {
				barred = append(barred, index.Around{Slot: p.slot, Barred: true})
			}
			continue
		}
		switch status := cl.admits(ctx, pod, p.node); {
		case status.IsRejected():
			barred = append(barred, index.Around{Slot: p.slot, Barred: true})
		case !status.IsSuccess():
			return nil, status.AsError()
		}
	}
	return barred, nil
}

// refused says of places why a pod, which fits nowhere, does not fit there, where the
// nominated pods make a difference to that.
func (cl *class) refused(ctx context.Context, pod *v1.Pod, places []place) (map[index.Slot]*fwk.Status, error) {
	refused := map[index.Slot]*fwk.Status{}
	var unknown []*place
	for i := range places {
		p := &places[i]
		alone, beside, known := cl.squeeze(p)
		switch {
		case known && alone == beside:
			// Every plugin says the same with them and without.
		case known && alone == 0 && cl.shapes[p.shape].fits:
			status, err := cl.refusedBeside(ctx, pod, p, beside)
			if err != nil {
				return nil, err
			}
			if status != nil {
				refused[p.slot] = status
			}
		default:
			unknown = append(unknown, p)
		}
	}
	said := make([]*fwk.Status, len(unknown))
	cl.profile.framework.Parallelizer().Until(ctx, len(unknown), func(i int) {
		said[i] = cl.admits(ctx, pod, unknown[i].node)
	}, metrics.Filter)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for i, p := range unknown {
		if said[i].IsRejected() {
			refused[p.slot] = said[i]
		} else if !said[i].IsSuccess() {
			return nil, said[i].AsError()
		}
	}
	return refused, nil
}

// refusedBeside is what plugins say of a place that would fit without the nominated
// pods. They say it by what is lacking, so they are asked once for each.
func (cl *class) refusedBeside(ctx context.Context, pod *v1.Pod, p *place, lacking lack) (*fwk.Status, error) {
	if said := cl.crowded[lacking]; said != nil {
		return said, nil
	}
	said := cl.admits(ctx, pod, p.node)
	if said.IsRejected() {
		cl.crowded[lacking] = said
		return said, nil
	}
	// If it fits, somebody has been nominated elsewhere meanwhile.
	return nil, said.AsError()
}
