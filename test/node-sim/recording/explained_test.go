package recording

import "slices"

// Names of the phases.
const (
	start = "Start"
	idle  = "Idle"
	pods  = "Pods"
)

// explanation is the reason of a known difference between kubelet and node-sim.
type explanation struct {
	phases []string
	rows   []string
	modes  []sender
	reason string
}

var (
	everywhere = []string{start, idle, pods}
	both       = []sender{wire, shared}
	onlyShared = []sender{shared}
)

// explanations are the known differences. A hollow kubelet is the code of kubelet without some of its parts, so there are
// requests that only node-sim sends.
var explanations = []explanation{
	{everywhere, []string{
		"watch services", "watch csidrivers", "watch runtimeclasses", "watch podcertificaterequests", "watch pods", "watch nodes",
		"watch configmaps", "watch secrets", "watch leases", "watch csinodes",
	}, onlyShared, "nodes in mode shared have no watches of their own"},
	{[]string{start}, []string{"update leases"}, both, "hollow kubelets take longer to start, so fewer renewals follow in this phase"},
	{[]string{start}, []string{"get leases"}, both, "kubelet begins with its Lease before its Node is registered, fails, and tries again"},
	{[]string{start}, []string{"get csinodes"}, both, "kubelet finds out with a GET of its CSINode whether the API server answers"},
	{[]string{start}, []string{"patch nodes/status"}, both, "kubelet reports once before it is ready"},
	{[]string{pods}, []string{"get pods", "patch pods/status"}, both,
		"kubelet reports more of the steps between two phases, and reads the pod before each report; node-sim reports phases and readiness"},
	{[]string{pods}, []string{"patch nodes/status"}, both, "kubelet reports its status within 40 s after an image is new on the node; nodes of node-sim list no images"},
	{[]string{pods}, []string{"create serviceaccounts/token", "watch configmaps", "watch secrets"}, []sender{wire},
		"the Node authorizer refuses the first request for a pod that was bound just now; the hollow kubelets are administrators"},
	{[]string{start}, []string{"get nodes"}, both, "kubelet reads its Node for the owner of its Lease, for its CSINode and for its volumes"},
	{[]string{start}, []string{"deletecollection resourceslices"}, both, "a hollow kubelet has no manager of devices"},
}

// explain returns the reason of a difference.
func explain(phase, row string, mode sender) (string, bool) {
	for _, e := range explanations {
		if slices.Contains(e.phases, phase) && slices.Contains(e.rows, row) && slices.Contains(e.modes, mode) {
			return e.reason, true
		}
	}
	return "", false
}
