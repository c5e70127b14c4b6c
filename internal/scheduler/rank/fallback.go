package rank

import (
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// FallbackReason is the reason for which the index does not rank nodes for a pod. It is a label value of a
// metric.
type FallbackReason string

// Error returns a message with the reason.
func (reason FallbackReason) Error() string {
	return "the index does not rank nodes for this pod: " + string(reason)
}

// The reasons for falling back to upstream's full scan.
const (
	reasonExtender       FallbackReason = "extender"
	reasonPlugin         FallbackReason = "plugin"
	ReasonVolumes        FallbackReason = "volumes"
	ReasonClaims         FallbackReason = "resource-claims"
	ReasonNamedNodes     FallbackReason = "named-nodes"
	reasonNominated      FallbackReason = "nominated-pods"
	reasonSharedHostname FallbackReason = "shared-hostname"
	reasonConstraints    FallbackReason = "constraints"
	ReasonRejected       FallbackReason = "rejected"
	reasonUnschedulable  FallbackReason = "unschedulable"
	reasonPreScore       FallbackReason = "pre-score"
	reasonScores         FallbackReason = "storage-scores"
	reasonSampled        FallbackReason = "sampled"
	reasonUncounted      FallbackReason = "uncounted-nodes"
)

// Rejection is the status of a PreFilter plugin that rejects a pod for all nodes. Plugins are the plugins to
// which the rejection is attributed.
type Rejection struct {
	Status  *fwk.Status
	Plugins sets.Set[string]
}

// Error returns the message of the status.
func (r Rejection) Error() string { return r.Status.Message() }

// Unwrap returns [ReasonRejected].
func (Rejection) Unwrap() error { return ReasonRejected }
