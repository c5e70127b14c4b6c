package core

// Fault is a deliberate fault. Only the tests of this package set one: the simulator must notice each of them.
// Otherwise it would not notice such a mistake either.
type Fault int

const (
	// NoFault is the value outside tests.
	NoFault Fault = iota

	// TrustAnySender accepts pods from replicas that do not watch them any more.
	TrustAnySender
	// KeepPodsOfOthers counts pods on nodes of other owners.
	KeepPodsOfOthers
	// ListRemovesNewerPods removes bound pods that are newer than the list that lacks them.
	ListRemovesNewerPods
	// RemovalEndsReservation releases a leader's reservation when a watch no longer shows the pod.
	RemovalEndsReservation
	// ReserveBeforeReady grants reservations before all pods on the nodes are known.
	ReserveBeforeReady
	// ReserveWithoutRoom grants reservations although the pod does not fit.
	ReserveWithoutRoom
	// ReleaseOfAnyNode releases a reservation on another node than the request names.
	ReleaseOfAnyNode
	// ExpireBound lets reservations of bound pods expire.
	ExpireBound
	// ExpireBeforeLateBind lets reservations of earlier leaders expire before their binds have arrived.
	ExpireBeforeLateBind

	// ReuseTerm starts a term that is not later than the one that the replica has followed.
	ReuseTerm
	// ReadyForAnyAssignment counts an owner as ready that follows an earlier assignment of the term.
	ReadyForAnyAssignment
	// NoResend does not send reservations to new owners of their nodes.
	NoResend
	// ReleaseUnanswered releases the reservation of a pod whose bind may have been executed.
	ReleaseUnanswered
	// ReleaseEarlierToo releases a reservation that the late bind of an earlier leader may use.
	ReleaseEarlierToo
	// EarlierOfSettledPods believes reports of reservations for pods that are known to be bound or deleted.
	EarlierOfSettledPods
	// IgnoreEarlier places pods anywhere for which an earlier leader has reserved capacity.
	IgnoreEarlier
	// AckOfEarlierPlacement counts the answer for an earlier placement of the pod.
	AckOfEarlierPlacement
	// AckOfFormerOwner counts the answer of a replica that does not own the node any more.
	AckOfFormerOwner
	// BindWithoutTenure binds pods although another replica may have acquired the Lease.
	BindWithoutTenure
	// BindBeforeAck binds pods before the owner of the node has answered.
	BindBeforeAck
	// BindAfterRefusal binds pods although the owner of the node has refused the reservation.
	BindAfterRefusal
	// BindWithOldAck binds pods although the owner has not answered for longer than a reservation lives.
	BindWithOldAck
	// AnswerBeforeReservations does not make owners wait for the reservations that were sent before the query.
	AnswerBeforeReservations
	// BelieveIncompleteReports believes an owner that does not know all pods on its nodes that none has anti-affinity.
	BelieveIncompleteReports
	// DecideWithoutOwners decides although pods of an owner that has not answered may forbid the decision.
	DecideWithoutOwners

	// FollowAnySender follows assignments that their leader has not sent.
	FollowAnySender
	// FollowUnverified follows leaders that were not elected.
	FollowUnverified
	// FollowOlder follows assignments that are older than the current one.
	FollowOlder
	// MissAssignments keeps the objects although an assignment was missed.
	MissAssignments

	// ReadyWithoutPods makes an owner ready before all owners have sent the pods on its nodes.
	ReadyWithoutPods
	// AnnounceAnyNode believes announcements of nodes in hash slots of other owners.
	AnnounceAnyNode
	// ReplaceExistingNode uses the announcement of a node that was created again before the earlier one is gone.
	ReplaceExistingNode
	// ForgetGoneNodes ignores reports about deleted nodes in hash slots of other owners.
	ForgetGoneNodes
	// ConfirmWaitingNodes confirms announcements that wait.
	ConfirmWaitingNodes
	// ConfirmBeforeList confirms announcements before the pods on the nodes were sent.
	ConfirmBeforeList
	// UseNewNodesAtOnce uses new nodes before the pods on them are known.
	UseNewNodesAtOnce
	// ListWithoutCheck lists pods of a watch that may be silent.
	ListWithoutCheck
	// ListOfEarlierAssignment says that a list has all pods although the assignment has changed meanwhile.
	ListOfEarlierAssignment
	// AnyListMakesReady counts the end of a list that answers an earlier request.
	AnyListMakesReady
	// ListOnNewConnection continues a list on the next connection.
	ListOnNewConnection
	// RemoveAtOwnerOnly sends the removal of a pod only to the known owner of its node.
	RemoveAtOwnerOnly
	// KeepGuests counts pods on a node that was unknown when they were sent, and has another owner now.
	KeepGuests
)
