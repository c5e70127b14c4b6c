package wire

import (
	"maps"
	"slices"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// Answer is the answer of one replica to a query, or the merged answers of several.
type Answer struct {
	// Missing are topology keys that the query lacks. If there are any, the answer has no
	// summary and the leader queries again with these keys.
	Missing TermKeys
	Summary index.Summary
	// Values are the topology values, and ImageSets the sets of present images, to which the summary
	// refers by number. Values[0] is [NoValue] and Values[1] is the empty string. An image set is a
	// string with one byte for each element of Images: 1 if the nodes have the image, otherwise 0.
	Values, ImageSets []string
	// Names are the names of the offered nodes, indexed by [index.Offer.Node].
	Names []string
	// Images are the images of the pod's init containers, containers and image volumes, in this
	// order, once for each use.
	Images []Image
	// Refusals are the reasons for which nodes do not fit, except spread and inter-pod affinity.
	Refusals []Refusal
	// UnavailableClaims are the allocated resource claims of the pod that are not available on some node, each
	// with one such node. Upstream deallocates one of them if the pod fits on no node.
	UnavailableClaims []UnavailableClaim `cbor:",omitempty"`
	// Node is the node object if the query requested it, and Pods are the pods on this node. Both
	// are in the API's protobuf encoding.
	Node []byte   `cbor:",omitempty"`
	Pods [][]byte `cbor:",omitempty"`
	// InUse are those PersistentVolumeClaims of the pod in the query that another pod uses, as
	// namespace/name, sorted.
	InUse []string `cbor:",omitempty"`
	// Candidates has the best node of each replica for preemption. Ineligible is the reason for
	// which the pod must not preempt; "" if it may.
	Candidates []Candidate `cbor:",omitempty"`
	Ineligible string      `cbor:",omitempty"`
	// ReferencedLabels are the pod labels to which selectors of other pods refer, except those of replicas of which
	// the leader has the current version. LabelVersions are the current versions, by the name of the replica.
	ReferencedLabels []string         `cbor:",omitempty"`
	LabelVersions    map[string]int64 `cbor:",omitempty"`
	// AllLabelsReferenced is true if there are more than [MaxReferencedLabels]. Then all pod labels count as referred
	// to: pods that differ in any label are of different classes.
	AllLabelsReferenced bool `cbor:",omitempty"`
	// Failed is the error with which a replica failed to evaluate this pod, at most [MaxFailed] bytes; "" if
	// none did. Such an error belongs to the pod: the replica was ready, and can evaluate other pods.
	Failed string `cbor:",omitempty"`
	// Errors has one message for each replica that could not answer and for each failed call to a
	// replica.
	Errors []string
	// Absent are the names of the replicas whose answers are not included: the replica, or one that
	// should have forwarded the query to it, failed or did not answer in time.
	Absent []string
}

// Candidate is a node on which a pod fits after the eviction of other pods.
type Candidate struct {
	Node string
	// Victims are the pods to evict, in the API's protobuf encoding. Violations is the
	// number of victims whose eviction violates at least one PodDisruptionBudget.
	Victims    [][]byte
	Violations int64
}

// addLabels adds the referenced labels of another answer.
func (a *Answer) addLabels(other *Answer) {
	if a.LabelVersions == nil {
		a.LabelVersions = map[string]int64{}
	}
	maps.Copy(a.LabelVersions, other.LabelVersions)
	a.AllLabelsReferenced = a.AllLabelsReferenced || other.AllLabelsReferenced
	if !a.AllLabelsReferenced && len(other.ReferencedLabels) > 0 {
		a.ReferencedLabels = union(a.ReferencedLabels, other.ReferencedLabels)
		a.AllLabelsReferenced = len(a.ReferencedLabels) > MaxReferencedLabels
	}
	if a.AllLabelsReferenced {
		a.ReferencedLabels = nil
	}
}

// FailedAnswer returns the answer of a replica that failed to evaluate the pod of a query.
func FailedAnswer(replica string, err error) *Answer {
	message := replica + ": " + err.Error()
	return &Answer{Values: []string{NoValue, ""}, Failed: strings.ToValidUTF8(message[:min(len(message), MaxFailed)], "")}
}

// UnavailableClaim is an allocated resource claim of a pod, by its position among the pod's claims, and a node on
// which the claim is not available.
type UnavailableClaim struct {
	Claim int
	Node  string
}

// AddUnavailable adds a claim, unless the answer already has a node for it. It ignores positions from MaxClaims on.
func (a *Answer) AddUnavailable(claim UnavailableClaim) {
	known := func(c UnavailableClaim) bool { return c.Claim == claim.Claim }
	if claim.Claim < MaxClaims && !slices.ContainsFunc(a.UnavailableClaims, known) {
		a.UnavailableClaims = append(a.UnavailableClaims, claim)
	}
}

// NoValue represents an absent label in lists of label values.
const NoValue = "\x00"

// Image is the number of nodes that have an image, and the image's size in bytes.
type Image struct{ Nodes, Size int64 }

// Refusal is the status with which a plugin rejected a number of nodes.
type Refusal struct {
	// Code is the framework's status code.
	Code    int
	Plugin  string
	Reasons []string
	Nodes   int
	// Counts are those of each of the nodes if other pods may forbid them as well, and upstream asks the
	// plugins for these pods first. Then the leader finds out which plugin comes first. Values of the
	// topology are indexes into [Answer.Values].
	Counts *index.NodeCounts `cbor:",omitempty"`
}

// Renumber replaces the numbers of values and image sets in the summary and the refusals.
func (a *Answer) Renumber(value, imageSet func(int32) int32) {
	a.Summary.Renumber(value, imageSet)
	// Several answers may share one slice of refusals in memory.
	a.Refusals = slices.Clone(a.Refusals)
	for i := range a.Refusals {
		if counts := a.Refusals[i].Counts; counts != nil {
			a.Refusals[i].Counts = counts.Renumber(value)
		}
	}
}
