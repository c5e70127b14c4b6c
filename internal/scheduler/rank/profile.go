package rank

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	versionutil "k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	componentversion "k8s.io/component-base/version"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/kubernetes/pkg/features"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intern"
)

// Profile is a scheduler profile with the data that the ranker needs of its configuration.
type Profile struct {
	Framework framework.Framework
	// filters are the names of the filter plugins. weights are the weights of the score plugins, by
	// name.
	filters sets.Set[string]
	weights map[string]int64
	// filterOrder has the positions of the filter plugins. Upstream reports the first that rejects a node.
	filterOrder map[string]int
	// unknown is the name of an enabled plugin that the ranker does not know; "" if there is none.
	unknown string
	// foreign are the filter plugins that the ranker does not know. They are asked about nodes if they are all that is
	// unknown, and take part in no score.
	foreign sets.Set[string]
	// foreignPreFilter is true if one of the foreign plugins has a PreFilter.
	foreignPreFilter bool
	// version is the Kubernetes version for which the ranker infers the node features that a pod
	// requires; nil if the plugin or the feature gate NodeDeclaredFeatures is disabled.
	version  *versionutil.Version
	spread   spreadRules
	affinity affinityRules
	usage    usageRules
	// addedAffinity is what the ranker needs of the node affinity that the profile adds to that of each
	// pod.
	addedAffinity addedAffinity
	// DryRuns is the instance of upstream's preemption plugin that evaluates preemption on the nodes
	// of this replica; nil if the scheduler has no replicas.
	DryRuns *defaultpreemption.DefaultPreemption
	// percentage is percentageOfNodesToScore: how many feasible nodes are scored, as a percentage of
	// all nodes; 0 scores all feasible nodes.
	percentage int
}

// spreadRules are what the ranker needs of PodTopologySpread: whether it filters and scores, its default
// constraints, and the listers for the default selector of a pod.
type spreadRules struct {
	filter, score    bool
	defaults         []v1.TopologySpreadConstraint
	systemDefaulting bool // defaults are upstream's system defaults
	services         corelisters.ServiceLister
	controllers      corelisters.ReplicationControllerLister
	replicaSets      appslisters.ReplicaSetLister
	statefulSets     appslisters.StatefulSetLister
}

// affinityRules are what the ranker needs of InterPodAffinity: whether it filters and scores, its arguments,
// and a lister of namespaces.
type affinityRules struct {
	filter, score  bool
	hardWeight     int64
	ignoreExisting bool
	namespaces     corelisters.NamespaceLister
}

// addedAffinity has the keys of the node labels to which added affinity refers. namesNodes is true if it
// selects nodes by name or hostname.
type addedAffinity struct {
	labelKeys  []string
	namesNodes bool
}

// nodeLocalPlugins read only one node and its pods, and of these only what [index.State] contains.
var nodeLocalPlugins = sets.New(
	pluginnames.NodeName, pluginnames.NodeUnschedulable, pluginnames.TaintToleration, pluginnames.NodeAffinity, pluginnames.NodePorts,
	pluginnames.NodeResourcesFit, pluginnames.NodeResourcesBalancedAllocation, pluginnames.NodeDeclaredFeatures,
)

// IndexPlugins are the plugins that the index replaces.
var IndexPlugins = sets.New(pluginnames.PodTopologySpread, pluginnames.InterPodAffinity, pluginnames.ImageLocality)

// usuallySkippedPlugins are the plugins that skip most pods in PreFilter. The index does not rank pods that
// they do not skip.
var usuallySkippedPlugins = sets.New(
	pluginnames.VolumeRestrictions, pluginnames.NodeVolumeLimits, pluginnames.VolumeBinding, pluginnames.VolumeZone, pluginnames.DynamicResources,
	pluginnames.GangScheduling, pluginnames.DeferredPodScheduling,
)

// normalizedPlugins are the score plugins whose scores are normalized over all nodes, apart from
// [IndexPlugins]. Their order is that of [index.Verdict.Raw]. reverse is true if a smaller raw score is
// better.
var normalizedPlugins = []struct {
	name    string
	reverse bool
}{
	{pluginnames.TaintToleration, true},
	{pluginnames.NodeAffinity, false},
	{pluginnames.DynamicResources, false},
}

// newProfile returns a profile with the data that the ranker needs of its configuration.
func newProfile(fw framework.Framework, cfg config.KubeSchedulerProfile) (*Profile, error) {
	enabled := fw.ListPlugins()
	p := &Profile{Framework: fw, filters: sets.New[string](), filterOrder: map[string]int{}, weights: map[string]int64{}, usage: newUsageRules(cfg), percentage: percentageOf(cfg), unknown: UnknownPlugin(fw)}
	for i, plugin := range enabled.Filter.Enabled {
		p.filters.Insert(plugin.Name)
		p.filterOrder[plugin.Name] = i
	}
	p.foreign = foreignFilters(fw)
	p.foreignPreFilter = slices.ContainsFunc(enabled.PreFilter.Enabled, func(plugin config.Plugin) bool { return p.foreign.Has(plugin.Name) })
	for _, plugin := range enabled.Score.Enabled {
		p.weights[plugin.Name] = int64(plugin.Weight)
	}
	if p.filters.Has(pluginnames.NodeDeclaredFeatures) && utilfeature.DefaultFeatureGate.Enabled(features.NodeDeclaredFeatures) {
		version, err := versionutil.Parse(componentversion.Get().String())
		if err != nil {
			return nil, fmt.Errorf("parsing the Kubernetes version of this program: %w", err)
		}
		p.version = version
	}
	factory := fw.SharedInformerFactory()
	_, scoresSpread := p.weights[pluginnames.PodTopologySpread]
	_, scoresAffinity := p.weights[pluginnames.InterPodAffinity]
	p.spread.filter, p.spread.score = p.filters.Has(pluginnames.PodTopologySpread), scoresSpread
	p.affinity.filter, p.affinity.score = p.filters.Has(pluginnames.InterPodAffinity), scoresAffinity
	for _, plugin := range cfg.PluginConfig {
		switch args := plugin.Args.(type) {
		case *config.PodTopologySpreadArgs:
			p.spread.defaults = args.DefaultConstraints
			if args.DefaultingType == config.SystemDefaulting {
				p.spread.defaults, p.spread.systemDefaulting = systemDefaults, true
			}
		case *config.InterPodAffinityArgs:
			p.affinity.hardWeight = int64(args.HardPodAffinityWeight)
			p.affinity.ignoreExisting = args.IgnorePreferredTermsOfExistingPods
		case *config.NodeAffinityArgs:
			terms := termsOf(args.AddedAffinity)
			p.addedAffinity = addedAffinity{labelKeys: labelKeys(terms), namesNodes: nameNodes(terms)}
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

// knows returns whether the ranker knows a filter or score plugin.
func knows(plugin string) bool {
	return nodeLocalPlugins.Has(plugin) || IndexPlugins.Has(plugin) || usuallySkippedPlugins.Has(plugin)
}

// foreignFilters returns the filter plugins that the ranker does not know; nil if such a plugin also scores.
func foreignFilters(fw framework.Framework) sets.Set[string] {
	enabled := fw.ListPlugins()
	for _, plugin := range slices.Concat(enabled.PreScore.Enabled, enabled.Score.Enabled) {
		if !knows(plugin.Name) {
			return nil
		}
	}
	foreign := sets.New[string]()
	for _, plugin := range slices.Concat(enabled.PreFilter.Enabled, enabled.Filter.Enabled) {
		if !knows(plugin.Name) {
			foreign.Insert(plugin.Name)
		}
	}
	return foreign
}

// UnknownPlugin returns the name of an enabled filter or score plugin that the ranker does not know, such as
// an out-of-tree plugin; "" if there is none.
func UnknownPlugin(fw framework.Framework) string {
	enabled := fw.ListPlugins()
	for _, set := range []config.PluginSet{enabled.PreFilter, enabled.Filter, enabled.PreScore, enabled.Score} {
		for _, plugin := range set.Enabled {
			if !knows(plugin.Name) {
				return plugin.Name
			}
		}
	}
	return ""
}

// requestsDevices returns whether a pod requests an extended resource for which a DeviceClass exists. Upstream's
// DynamicResources then allocates devices, as for a pod with resource claims.
func (p *Profile) requestsDevices(spec *v1.PodSpec) bool {
	mapped := func(requests v1.ResourceList) bool {
		for name, amount := range requests {
			if !amount.IsZero() && p.hasDeviceClass(name) {
				return true
			}
		}
		return false
	}
	requests := func(c v1.Container) bool { return mapped(c.Resources.Requests) }
	return mapped(spec.Overhead) || slices.ContainsFunc(spec.Containers, requests) || slices.ContainsFunc(spec.InitContainers, requests)
}

// hasDeviceClass returns whether a DeviceClass exists for a resource.
func (p *Profile) hasDeviceClass(resource v1.ResourceName) bool {
	if !schedutil.IsDRAExtendedResourceName(resource) {
		return false
	}
	manager := p.Framework.SharedDRAManager()
	return manager != nil && manager.DeviceClassResolver().GetDeviceClass(resource) != nil
}

// Admits returns whether a node has the resources, free ports and labels that a pod requires, for a pod that the
// index cannot rank. Like upstream's NodeResourcesFit, it ignores resources that the profile ignores, and those
// that the node does not have from a device plugin, but may have by a DeviceClass.
func (p *Profile) Admits(pod *v1.Pod, info *framework.NodeInfo) bool {
	refuses := func(result kubescheduler.AdmissionResult) bool {
		lacking := result.InsufficientResource
		if lacking == nil {
			return true
		}
		byDeviceClass := info.Allocatable.ScalarResources[lacking.ResourceName] == 0 && p.hasDeviceClass(lacking.ResourceName)
		return !byDeviceClass && !p.usage.ignores(lacking.ResourceName)
	}
	return !slices.ContainsFunc(kubescheduler.AdmissionCheck(pod, info, true), refuses)
}

// leastSample is the minimal number of nodes to score (minFeasibleNodesToFind in schedule_one.go).
const leastSample = 100

// percentageOf returns the percentage of nodes to score; 0 means all. It returns 0 also if the profile sets
// no percentage: upstream then derives one from the cluster size, only to save time.
func percentageOf(cfg config.KubeSchedulerProfile) int {
	if given := cfg.PercentageOfNodesToScore; given != nil && *given < 100 {
		return int(*given)
	}
	return 0
}

// sample returns how many feasible nodes are scored in a cluster with this number of nodes; 0 means all
// feasible nodes.
func (p *Profile) sample(nodes int) int {
	if p.percentage == 0 {
		return 0
	}
	return max(leastSample, nodes*p.percentage/100)
}

// appendFeatures appends the node features that a pod requires to a class key.
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

// systemDefaults are the default spread constraints of pods that a Service, ReplicaSet, StatefulSet
// or ReplicationController selects (pkg/scheduler/framework/plugins/podtopologyspread/plugin.go).
var systemDefaults = []v1.TopologySpreadConstraint{
	{TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.ScheduleAnyway, MaxSkew: 3},
	{TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.ScheduleAnyway, MaxSkew: 5},
}
