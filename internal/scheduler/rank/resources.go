package rank

import (
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// usagePlugins read what is requested on a node. All other node-local plugins read only its shape.
var usagePlugins = sets.New(pluginnames.NodePorts, pluginnames.NodeResourcesFit, pluginnames.NodeResourcesBalancedAllocation)

// usageRules are the arguments of the usage plugins if they are the common ones: LeastAllocated and
// balanced allocation of CPU and memory. Then a verdict on a node state is arithmetic. Otherwise,
// and for pods that request other resources, the plugins run.
type usageRules struct {
	usual bool
	// cpu and memory are the weights of LeastAllocated.
	cpu, memory int64
}

func newUsageRules(cfg config.KubeSchedulerProfile) usageRules {
	var rules usageRules
	fit, balance := false, false
	for _, plugin := range cfg.PluginConfig {
		switch args := plugin.Args.(type) {
		case *config.NodeResourcesFitArgs:
			strategy := args.ScoringStrategy
			if strategy == nil || strategy.Type != config.LeastAllocated {
				return usageRules{}
			}
			rules.cpu, rules.memory, fit = weightsOf(strategy.Resources)
		case *config.NodeResourcesBalancedAllocationArgs:
			_, _, balance = weightsOf(args.Resources)
		}
	}
	rules.usual = fit && balance
	return rules
}

// weightsOf returns the weights of CPU and memory, if there are no other resources.
func weightsOf(resources []config.ResourceSpec) (cpu, memory int64, usual bool) {
	for _, resource := range resources {
		switch v1.ResourceName(resource.Name) {
		case v1.ResourceCPU:
			cpu = resource.Weight
		case v1.ResourceMemory:
			memory = resource.Weight
		default:
			return 0, 0, false
		}
	}
	return cpu, memory, len(resources) == 2 && cpu > 0 && memory > 0
}

// request is what a pod requests, as plugins count it.
type request struct {
	milliCPU, memory, storage      int64
	nonZeroMilliCPU, nonZeroMemory int64
}

func newRequest(pod fwk.PodInfo) request {
	resources := pod.CalculateResource()
	return request{
		milliCPU: resources.Resource.GetMilliCPU(), memory: resources.Resource.GetMemory(),
		storage:         resources.Resource.GetEphemeralStorage(),
		nonZeroMilliCPU: resources.Non0CPU, nonZeroMemory: resources.Non0Mem,
	}
}

// isSimple returns whether the pod requests only CPU, memory and ephemeral storage, so that
// arithmetic decides.
func (cl *Class) isSimple() bool {
	resources := cl.pod.CalculateResource()
	return cl.profile.usage.usual && len(resources.Resource.GetScalarResources()) == 0 &&
		cl.skipFilter.Has(pluginnames.NodePorts) && cl.profile.filters.Has(pluginnames.NodeResourcesFit)
}

// free is what the nodes of a shape can allocate.
type free struct{ milliCPU, memory, storage, pods int64 }

// lack is the set of resources that a node has too little of.
type lack uint8

const (
	lackPods lack = 1 << iota
	lackCPU
	lackMemory
	lackStorage
)

// lacks returns what a node has too little of for a request (noderesources/fit.go).
func (r *request) lacks(free *free, used *index.State) (lacks lack) {
	if int64(used.Pods)+1 > free.pods {
		lacks |= lackPods
	}
	if r.milliCPU != 0 && r.milliCPU > free.milliCPU-used.MilliCPU {
		lacks |= lackCPU
	}
	if r.memory != 0 && r.memory > free.memory-used.Memory {
		lacks |= lackMemory
	}
	if r.storage != 0 && r.storage > free.storage-used.EphemeralStorage {
		lacks |= lackStorage
	}
	return lacks
}

// least is the LeastAllocated score (noderesources/least_allocated.go).
func (r *request) least(free *free, used *index.State, rules *usageRules) int64 {
	score, weights := int64(0), int64(0)
	for _, part := range [2]struct{ requested, allocatable, weight int64 }{
		{used.NonZeroMilliCPU + r.nonZeroMilliCPU, free.milliCPU, rules.cpu},
		{used.NonZeroMemory + r.nonZeroMemory, free.memory, rules.memory},
	} {
		if part.allocatable == 0 {
			continue
		}
		if part.requested <= part.allocatable {
			score += part.weight * ((part.allocatable - part.requested) * fwk.MaxScore / part.allocatable)
		}
		weights += part.weight
	}
	if weights == 0 {
		return 0
	}
	return score / weights
}

// balance is the balanced allocation score (noderesources/balanced_allocation.go).
func (r *request) balance(free *free, used *index.State) int64 {
	with := free.balance(used.MilliCPU+r.milliCPU, used.Memory+r.memory)
	without := free.balance(used.MilliCPU, used.Memory)
	return fwk.MaxScore/2 + (fwk.MaxScore/2+with-without)/2
}

// balance scores how equal the shares of used CPU and memory are.
func (f *free) balance(milliCPU, memory int64) int64 {
	deviation := 0.0
	if f.milliCPU != 0 && f.memory != 0 {
		cpu := min(float64(milliCPU)/float64(f.milliCPU), 1)
		memory := min(float64(memory)/float64(f.memory), 1)
		deviation = math.Abs((cpu - memory) / 2)
	}
	return int64((1 - deviation) * float64(fwk.MaxScore))
}

// shapeVerdict is the result of the plugins that read only the shape of a node.
type shapeVerdict struct {
	fits     bool
	free     free
	static   int64
	raw      []int64
	imageSet int32
}

// quickVerdict computes the verdict on a node state by arithmetic. It returns false if the plugins
// have to run. id is a node with that state.
func (cl *Class) quickVerdict(id index.NodeID, used *index.State) (index.Verdict, bool, error) {
	if !cl.simple {
		return index.Verdict{}, false, nil
	}
	shape := cl.shapes[used.Shape]
	if shape == nil {
		made, err := cl.judgeShape(cl.cluster.ByID[id])
		if err != nil {
			return index.Verdict{}, false, err
		}
		shape = made
		cl.shapes[used.Shape] = shape
	}
	// Plugins explain why nodes do not fit, in their order.
	if !shape.fits || cl.request.lacks(&shape.free, used) != 0 {
		return index.Verdict{}, false, nil
	}
	verdict := index.Verdict{Fits: true, Static: shape.static, Raw: shape.raw, ImageSet: shape.imageSet}
	if cl.fitWeight != 0 {
		verdict.Static += cl.fitWeight * cl.request.least(&shape.free, used, &cl.profile.usage)
	}
	if cl.balanceWeight != 0 {
		verdict.Static += cl.balanceWeight * cl.request.balance(&shape.free, used)
	}
	return verdict, true, nil
}

// Steps returns what becomes of a node as more pods of the class are placed on it, at most that
// many. If plugins have to run it returns one step.
func (cl *Class) Steps(id index.NodeID, used *index.State, most int) ([]index.Step, error) {
	if !cl.simple {
		return cl.askedStep(id)
	}
	steps := make([]index.Step, 0, most)
	after := *used
	for len(steps) < most {
		after = cl.request.addTo(after)
		verdict, fits, err := cl.quickVerdict(id, &after)
		if err != nil {
			return nil, err
		}
		steps = append(steps, index.Step{Fits: fits, Static: verdict.Static})
		if !fits {
			break
		}
	}
	return steps, nil
}

// addTo returns a node state with one more pod.
func (r *request) addTo(s index.State) index.State {
	s.Pods++
	s.MilliCPU += r.milliCPU
	s.Memory += r.memory
	s.EphemeralStorage += r.storage
	s.NonZeroMilliCPU += r.nonZeroMilliCPU
	s.NonZeroMemory += r.nonZeroMemory
	return s
}

// askedStep runs the plugins on a node with one more pod of the class.
func (cl *Class) askedStep(id index.NodeID) ([]index.Step, error) {
	info := cl.cluster.ByID[id].Info.SnapshotConcrete()
	info.AddPodInfo(cl.pod)
	verdict, _, err := cl.runPlugins(cl.state, info)
	if err != nil {
		return nil, err
	}
	return []index.Step{{Fits: verdict.Fits, Static: verdict.Static}}, nil
}

// weight returns the weight of a score plugin; 0 if it skips the pod.
func (cl *Class) weight(name string) int64 {
	if cl.skipScore.Has(name) {
		return 0
	}
	return cl.profile.weights[name]
}

// judgeShape runs the plugins that read only the shape of a node.
func (cl *Class) judgeShape(n *cache.Node) (*shapeVerdict, error) {
	state := cl.state.Clone()
	state.SetSkipFilterPlugins(cl.state.GetSkipFilterPlugins().Union(usagePlugins))
	state.SetSkipScorePlugins(cl.state.GetSkipScorePlugins().Union(usagePlugins))
	verdict, _, err := cl.runPlugins(state, n.Info)
	if err != nil {
		return nil, err
	}
	allocatable := n.Info.Allocatable
	free := free{allocatable.MilliCPU, allocatable.Memory, allocatable.EphemeralStorage, int64(allocatable.AllowedPodNumber)}
	return &shapeVerdict{fits: verdict.Fits, free: free, static: verdict.Static, raw: verdict.Raw, imageSet: verdict.ImageSet}, nil
}
