package attach_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// replicated are the declarations in kube-scheduler's sources whose behaviour this repository repeats in its own
// code, by file in the module k8s.io/kubernetes.
var replicated = map[string][]string{
	// rank.percentageOf and rank.leastSample; rank.SchedulePod takes the place of schedulePod.
	"pkg/scheduler/schedule_one.go": {"schedulePod", "findNodesThatFitPod", "evaluateNominatedNode", "numFeasibleNodesToFind", "minFeasibleNodesToFind", "prioritizeNodes"},
	// The cache package.
	"pkg/scheduler/backend/cache/cache.go":     {"AssumePod", "ForgetPod", "AddPod", "UpdatePod", "RemovePod", "AddNode", "UpdateNode", "RemoveNode", "UpdateSnapshot", "addNodeImageStates", "removeNodeImageStates"},
	"pkg/scheduler/backend/cache/snapshot.go":  {"Snapshot"},
	"pkg/scheduler/framework/types.go":         {"NodeInfo", "PodInfo", "Resource"},
	"pkg/scheduler/backend/queue/nominator.go": {"nominator"},
	// rank/resources.go.
	"pkg/scheduler/framework/plugins/noderesources/fit.go":                 {"fitsRequest", "NewFit", "Filter", "preFilterState", "preScoreState"},
	"pkg/scheduler/framework/plugins/noderesources/resource_allocation.go": {"score", "calculateNodeAllocatableRequest", "calculateResourceAllocatableRequest"},
	"pkg/scheduler/framework/plugins/noderesources/least_allocated.go":     {"leastResourceScorer", "leastRequestedScore"},
	"pkg/scheduler/framework/plugins/noderesources/balanced_allocation.go": {"balancedResourceScorer", "balancedResourceScore", "balancedAllocationPreScoreState"},
	// rank/profile.go, requestsDevices.
	"pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go": {"preFilterExtendedResources", "hasDeviceClassMappedExtendedResource"},
	// rank/storage.go and rank/nodesets.go.
	"pkg/scheduler/framework/plugins/volumebinding/volume_binding.go":           {"PreFilter", "Filter", "PreScore", "Score", "stateData"},
	"pkg/scheduler/framework/plugins/volumebinding/binder.go":                   {"PodVolumeClaims", "GetPodVolumeClaims", "FindPodVolumes", "checkBoundClaims", "checkVolumeProvisions", "hasEnoughCapacity", "tryTranslatePVToCSI", "isCSIMigrationOnForPlugin"},
	"pkg/scheduler/framework/plugins/volumezone/volume_zone.go":                 {"getPVbyPod", "getPVTopologies", "Filter", "topologyLabels", "translateToGALabel"},
	"pkg/scheduler/framework/plugins/volumerestrictions/volume_restrictions.go": {"PreFilter", "Filter"},
	"pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go":      {"Score", "computeScore"},
	// rank/volume_room.go.
	"pkg/scheduler/framework/plugins/nodevolumelimits/csi.go": {"PreFilter", "Filter", "filterAttachableVolumes", "getCSIDriverInfo", "getCSIDriverInfoFromSC", "getNodeVolumeAttachmentInfo", "getVolumeLimits"},
	// index/lazy.go and rank/asker.go.
	"pkg/scheduler/framework/runtime/framework.go": {"RunPreFilterPlugins", "RunFilterPluginsWithNominatedPods", "addGENominatedPods"},
	// rank/images.go.
	"pkg/scheduler/framework/plugins/imagelocality/image_locality.go": {"calculatePriority", "sumImageScores", "scaledImageScore", "normalizedImageName", "minThreshold", "maxContainerThreshold"},
	// rank/spread.go and index/rank.go.
	"pkg/scheduler/framework/plugins/podtopologyspread/common.go":    {"matchNodeInclusionPolicies", "buildDefaultConstraints", "filterTopologySpreadConstraints", "mergeLabelSetWithSelector", "countPodsMatchSelector"},
	"pkg/scheduler/framework/plugins/podtopologyspread/plugin.go":    {"systemDefaultConstraints"},
	"pkg/scheduler/framework/plugins/podtopologyspread/filtering.go": {"calPreFilterState", "minMatchNum", "Filter", "updateWithPod"},
	"pkg/scheduler/framework/plugins/podtopologyspread/scoring.go":   {"initPreScoreState", "PreScore", "Score", "NormalizeScore", "topologyNormalizingWeight", "scoreForCount"},
	// rank/affinity.go and index/rank.go.
	"pkg/scheduler/framework/plugins/interpodaffinity/filtering.go": {"PreFilter", "satisfyExistingPodsAntiAffinity", "satisfyPodAntiAffinity", "nodePodsSatisfyAffinity", "nodeTopologyMatchesAffinity", "satisfiesSelfAffinityCheck", "Filter", "podMatchesAllAffinityTerms"},
	"pkg/scheduler/framework/plugins/interpodaffinity/scoring.go":   {"processExistingPod", "PreScore", "Score", "NormalizeScore"},
	// rank/walk.go, and [rank.NamesNodes].
	"pkg/scheduler/framework/plugins/nodeaffinity/node_affinity.go": {"PreFilter", "New"},
	// pkg/distscheduler/app takes the place of Setup for replicas.
	"cmd/kube-scheduler/app/server.go": {"Setup", "Run", "NewSchedulerCommand", "runCommand"},
}

// TestReplicatedSourcesAreReviewed fails if a Kubernetes release changes code of kube-scheduler that this
// repository repeats. docs/upgrading-kubernetes.md says what to do.
func TestReplicatedSourcesAreReviewed(t *testing.T) {
	output, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSpace(string(output))
	var lines []string
	for file, names := range replicated {
		for _, name := range names {
			lines = append(lines, fmt.Sprintf("%s %s %s", file, name, sourceHash(t, filepath.Join(root, file), name)))
		}
	}
	compareReviewed(t, "testdata/sources.txt", lines)
}

// sourceHash returns a hash of all declarations with a name in a Go file, without comments.
func sourceHash(t *testing.T, path, name string) string {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var source bytes.Buffer
	add := func(node ast.Node) {
		if err := format.Node(&source, files, node); err != nil {
			t.Fatal(err)
		}
	}
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			if d.Name.Name == name {
				add(d)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if declares(spec, name) {
					add(spec)
				}
			}
		}
	}
	if source.Len() == 0 {
		t.Errorf("%s does not declare %s: see docs/upgrading-kubernetes.md", path, name)
	}
	return fmt.Sprintf("%x", sha256.Sum256(source.Bytes()))[:16]
}

// declares returns whether a declaration is one of a name.
func declares(spec ast.Spec, name string) bool {
	switch s := spec.(type) {
	case *ast.TypeSpec:
		return s.Name.Name == name
	case *ast.ValueSpec:
		for _, ident := range s.Names {
			if ident.Name == name {
				return true
			}
		}
	}
	return false
}
