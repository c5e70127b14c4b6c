package rank

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	versionutil "k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	componentversion "k8s.io/component-base/version"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intern"
)

// profile is what has to be known of a profile to rank nodes for its pods.
type Profile struct {
	Framework framework.Framework
	// filters are the filter plugins, and weights those of score plugins, by name.
	filters sets.Set[string]
	weights map[string]int64
	// unknown is a plugin of which it is not known what it looks at.
	unknown string
	// version that nodes' declared features are inferred for; nil if they do not
	// count.
	version  *versionutil.Version
	spread   spreadRules
	affinity affinityRules
	usage    usageRules
	// dryRuns try where pods would fit if others left, in replicas.
	DryRuns *defaultpreemption.DefaultPreemption
	// percentage of the nodes that a pod is placed on the best of; 0 for all.
	percentage int
}

// spreadRules are the arguments of PodTopologySpread, if it is enabled.
type spreadRules struct {
	filter, score bool
	defaults      []v1.TopologySpreadConstraint
	system        bool
	services      corelisters.ServiceLister
	controllers   corelisters.ReplicationControllerLister
	replicaSets   appslisters.ReplicaSetLister
	statefulSets  appslisters.StatefulSetLister
}

// affinityRules are the arguments of InterPodAffinity, if it is enabled.
type affinityRules struct {
	filter, score  bool
	hardWeight     int64
	ignoreExisting bool
	namespaces     corelisters.NamespaceLister
}

// local are plugins that look at a node and the pods on it as [index.State] has
// them, and nowhere else.
var nodeLocalPlugins = sets.New(
	pluginnames.NodeName, pluginnames.NodeUnschedulable, pluginnames.TaintToleration, pluginnames.NodeAffinity, pluginnames.NodePorts,
	pluginnames.NodeResourcesFit, pluginnames.NodeResourcesBalancedAllocation, pluginnames.NodeDeclaredFeatures,
)

// ours are plugins whose part the index plays.
var IndexPlugins = sets.New(pluginnames.PodTopologySpread, pluginnames.InterPodAffinity, pluginnames.ImageLocality)

// optional are plugins that have nothing to say of most pods, and say so.
var usuallySkippedPlugins = sets.New(
	pluginnames.VolumeRestrictions, pluginnames.NodeVolumeLimits, pluginnames.VolumeBinding, pluginnames.VolumeZone, pluginnames.DynamicResources,
	pluginnames.GangScheduling, pluginnames.DeferredPodScheduling,
)

// normalized are the score plugins that compare nodes, in the order of
// [index.Verdict.Raw]; true where small values are good.
var normalizedPlugins = []struct {
	name    string
	reverse bool
}{
	{pluginnames.TaintToleration, true},
	{pluginnames.NodeAffinity, false},
	{pluginnames.DynamicResources, false},
}

func newProfile(fw framework.Framework, cfg config.KubeSchedulerProfile) (*Profile, error) {
	enabled := fw.ListPlugins()
	p := &Profile{Framework: fw, filters: sets.New[string](), weights: map[string]int64{}, usage: newUsageRules(cfg), percentage: percentageOf(cfg), unknown: UnknownPlugin(fw)}
	for _, plugin := range enabled.Filter.Enabled {
		p.filters.Insert(plugin.Name)
	}
	for _, plugin := range enabled.Score.Enabled {
		p.weights[plugin.Name] = int64(plugin.Weight)
	}
	if p.filters.Has(pluginnames.NodeDeclaredFeatures) && utilfeature.DefaultFeatureGate.Enabled(features.NodeDeclaredFeatures) {
		version, err := versionutil.Parse(componentversion.Get().String())
		if err != nil {
			return nil, fmt.Errorf("failed to parse version: %w", err)
		}
		p.version = version
	}
	factory := fw.SharedInformerFactory()
	_, spreads := p.weights[pluginnames.PodTopologySpread]
	_, attracts := p.weights[pluginnames.InterPodAffinity]
	p.spread.filter, p.spread.score = p.filters.Has(pluginnames.PodTopologySpread), spreads
	p.affinity.filter, p.affinity.score = p.filters.Has(pluginnames.InterPodAffinity), attracts
	for _, plugin := range cfg.PluginConfig {
		switch args := plugin.Args.(type) {
		case *config.PodTopologySpreadArgs:
			p.spread.defaults = args.DefaultConstraints
			if args.DefaultingType == config.SystemDefaulting {
				p.spread.defaults, p.spread.system = systemDefaults, true
			}
		case *config.InterPodAffinityArgs:
			p.affinity.hardWeight = int64(args.HardPodAffinityWeight)
			p.affinity.ignoreExisting = args.IgnorePreferredTermsOfExistingPods
		}
	}
	if factory == nil {
		return nil, fmt.Errorf("profile %s has no informers", fw.ProfileName())
	}
	p.spread.services = factory.Core().V1().Services().Lister()
	p.spread.controllers = factory.Core().V1().ReplicationControllers().Lister()
	p.spread.replicaSets = factory.Apps().V1().ReplicaSets().Lister()
	p.spread.statefulSets = factory.Apps().V1().StatefulSets().Lister()
	p.affinity.namespaces = factory.Core().V1().Namespaces().Lister()
	return p, nil
}

// unknown is a plugin that has a say in where pods go and is not upstream's; "" if
// there is none.
func UnknownPlugin(fw framework.Framework) string {
	enabled := fw.ListPlugins()
	for _, set := range []config.PluginSet{enabled.PreFilter, enabled.Filter, enabled.PreScore, enabled.Score} {
		for _, plugin := range set.Enabled {
			if name := plugin.Name; !nodeLocalPlugins.Has(name) && !IndexPlugins.Has(name) && !usuallySkippedPlugins.Has(name) {
				return name
			}
		}
	}
	return ""
}

// Nodes that are always scored (minFeasibleNodesToFind in schedule_one.go).
const leastSample = 100

// percentageOf is that of a profile; 0 if all nodes count. They also do where upstream
// would choose a percentage by the size of the cluster, because that is only meant
// to save time.
func percentageOf(cfg config.KubeSchedulerProfile) int {
	if given := cfg.PercentageOfNodesToScore; given != nil && *given < 100 {
		return int(*given)
	}
	return 0
}

// sample is how many nodes that fit are to be scored, of so many that there are; 0
// for all.
func (p *Profile) sample(nodes int) int {
	if p.percentage == 0 {
		return 0
	}
	return max(leastSample, nodes*p.percentage/100)
}

// appendFeatures adds what a pod asks of nodes' declared features.
func (p *Profile) appendFeatures(key []byte, spec *v1.PodSpec) ([]byte, error) {
	if p.version == nil {
		return key, nil
	}
	features, err := ndf.DefaultFramework.InferForPodScheduling(&ndf.PodInfo{Spec: spec}, p.version)
	if err != nil {
		return nil, err
	}
	return intern.AppendString(key, features.String()), nil
}

// systemDefaults are the constraints of pods that a Service, ReplicaSet,
// StatefulSet or ReplicationController selects and that have none of their own
// (pkg/scheduler/framework/plugins/podtopologyspread/plugin.go).
var systemDefaults = []v1.TopologySpreadConstraint{
	{TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.ScheduleAnyway, MaxSkew: 3},
	{TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.ScheduleAnyway, MaxSkew: 5},
}
