package rank

import (
	"context"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	v1helper "k8s.io/kubernetes/pkg/apis/core/v1/helper"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// usagePlugins read what the pods of a node request. All other node-local plugins read only its shape.
var usagePlugins = sets.New(pluginnames.NodePorts, pluginnames.NodeResourcesFit, pluginnames.NodeResourcesBalancedAllocation)

// usageRules are the arguments of the usage plugins.
type usageRules struct {
	// arithmetic is true if the arguments are LeastAllocated and balanced allocation of CPU and
	// memory. Then the ranker computes a verdict on a node state itself, unless the pod requests
	// other resources. Otherwise the plugins run.
	arithmetic bool
	// cpu and memory are the weights of LeastAllocated.
	cpu, memory int64
	// fit and balance are the resources of NodeResourcesFit's score and of balanced allocation, in the
	// order of the arguments.
	fit, balance []config.ResourceSpec
	// ignored are the extended resources, and the groups of them, that NodeResourcesFit ignores.
	ignored, ignoredGroups []string
}

// ignores returns whether NodeResourcesFit ignores a resource.
func (r *usageRules) ignores(resource v1.ResourceName) bool {
	group, _, _ := strings.Cut(string(resource), "/")
	return v1helper.IsExtendedResourceName(resource) && (slices.Contains(r.ignored, string(resource)) || slices.Contains(r.ignoredGroups, group))
}

func newUsageRules(cfg config.KubeSchedulerProfile) usageRules {
	var rules usageRules
	fit, balance := false, false
	for _, plugin := range cfg.PluginConfig {
		switch args := plugin.Args.(type) {
		case *config.NodeResourcesFitArgs:
			rules.ignored, rules.ignoredGroups = args.IgnoredResources, args.IgnoredResourceGroups
			strategy := args.ScoringStrategy
			if strategy == nil || strategy.Type != config.LeastAllocated {
				continue
			}
			rules.cpu, rules.memory, fit = weightsOf(strategy.Resources)
			rules.fit = strategy.Resources
		case *config.NodeResourcesBalancedAllocationArgs:
			_, _, balance = weightsOf(args.Resources)
			rules.balance = args.Resources
		}
	}
	rules.arithmetic = fit && balance
	return rules
}

// weightsOf returns the weights of CPU and memory. It returns false if one of them has no weight, or if
// there are other resources.
func weightsOf(resources []config.ResourceSpec) (cpu, memory int64, arithmetic bool) {
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

// allocatable has the allocatable resources of the nodes of a shape.
type allocatable struct{ milliCPU, memory, storage, pods int64 }

// lack is a set of resources of which a node has too little.
type lack uint8

const (
	lackPods lack = 1 << iota
	lackCPU
	lackMemory
	lackStorage
)

// lacks returns the resources of which a node has too little for a request (noderesources/fit.go).
func (r *request) lacks(allocatable *allocatable, used *index.State) (lacks lack) {
	if int64(used.Pods)+1 > allocatable.pods {
		lacks |= lackPods
	}
	if r.required.milliCPU != 0 && r.required.milliCPU > allocatable.milliCPU-used.MilliCPU {
		lacks |= lackCPU
	}
	if r.required.memory != 0 && r.required.memory > allocatable.memory-used.Memory {
		lacks |= lackMemory
	}
	if r.required.storage != 0 && r.required.storage > allocatable.storage-used.EphemeralStorage {
		lacks |= lackStorage
	}
	return lacks
}

// leastAllocated returns the LeastAllocated score (noderesources/least_allocated.go).
func (r *request) leastAllocated(allocatable *allocatable, used *index.State, rules *usageRules) int64 {
	score, weights := int64(0), int64(0)
	for _, part := range [2]struct{ requested, allocatable, weight int64 }{
		{used.NonZeroMilliCPU + r.fit.milliCPU, allocatable.milliCPU, rules.cpu},
		{used.NonZeroMemory + r.fit.memory, allocatable.memory, rules.memory},
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

// balancedAllocation returns the balanced allocation score (noderesources/balanced_allocation.go).
func (r *request) balancedAllocation(allocatable *allocatable, used *index.State) int64 {
	with := allocatable.balance(used.MilliCPU+r.balance.milliCPU, used.Memory+r.balance.memory)
	without := allocatable.balance(used.MilliCPU, used.Memory)
	return fwk.MaxScore/2 + (fwk.MaxScore/2+with-without)/2
}

// balance returns a score that is higher, the less the used fractions of CPU and memory differ.
func (f *allocatable) balance(milliCPU, memory int64) int64 {
	deviation := 0.0
	if f.milliCPU != 0 && f.memory != 0 {
		cpu := min(float64(milliCPU)/float64(f.milliCPU), 1)
		memory := min(float64(memory)/float64(f.memory), 1)
		deviation = math.Abs((cpu - memory) / 2)
	}
	return int64((1 - deviation) * float64(fwk.MaxScore))
}

// shapeVerdict is the verdict of the plugins that read only the shape of a node.
type shapeVerdict struct {
	fits        bool
	allocatable allocatable
	static      int64
	raw         []int64
	imageSet    int32
}

// arithmeticVerdict computes the verdict on a node state without the usage plugins. It returns false if the
// plugins have to run. id is a node with that state.
func (cl *Class) arithmeticVerdict(id index.NodeID, used *index.State) (index.Verdict, bool, error) {
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
	// If the node does not fit, the plugins have to run, because their order determines the reason.
	if !shape.fits || cl.request.lacks(&shape.allocatable, used) != 0 {
		return index.Verdict{}, false, nil
	}
	verdict := index.Verdict{Fits: true, Static: shape.static, Raw: shape.raw, ImageSet: shape.imageSet}
	if cl.fitWeight != 0 {
		verdict.Static += cl.fitWeight * cl.request.leastAllocated(&shape.allocatable, used, &cl.profile.usage)
	}
	if cl.balanceWeight != 0 {
		verdict.Static += cl.balanceWeight * cl.request.balancedAllocation(&shape.allocatable, used)
	}
	return verdict, true, nil
}

// Steps predicts the verdicts on a node with one, two, … more pods of the class, for at most limit pods.
// If plugins have to run, it returns only one step.
func (cl *Class) Steps(id index.NodeID, used *index.State, limit int) ([]index.Step, error) {
	if !cl.simple {
		return cl.pluginStep(id)
	}
	steps := make([]index.Step, 0, limit)
	after := *used
	for len(steps) < limit {
		after = cl.request.usage.addTo(after)
		verdict, fits, err := cl.arithmeticVerdict(id, &after)
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

// pluginStep runs the plugins on a node with one more pod of the class.
func (cl *Class) pluginStep(id index.NodeID) ([]index.Step, error) {
	info := cl.cluster.ByID[id].Info.SnapshotConcrete()
	info.AddPodInfo(cl.pod)
	verdict, _, err := cl.runPlugins(context.Background(), cl.state, info)
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

// judgeShape runs the plugins that read only the shape of a node. n is a node with this shape.
func (cl *Class) judgeShape(n *cache.Node) (*shapeVerdict, error) {
	state := cl.state.Clone()
	state.SetSkipFilterPlugins(cl.state.GetSkipFilterPlugins().Union(usagePlugins))
	state.SetSkipScorePlugins(cl.state.GetSkipScorePlugins().Union(usagePlugins))
	verdict, _, err := cl.runPlugins(context.Background(), state, n.Info)
	if err != nil {
		return nil, err
	}
	total := n.Info.Allocatable
	limits := allocatable{total.MilliCPU, total.Memory, total.EphemeralStorage, int64(total.AllowedPodNumber)}
	return &shapeVerdict{fits: verdict.Fits, allocatable: limits, static: verdict.Static, raw: verdict.Raw, imageSet: verdict.ImageSet}, nil
}
