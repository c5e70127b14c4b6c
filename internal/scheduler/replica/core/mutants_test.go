package core

import (
	"os"
	"slices"
	"testing"
)

// deliberateFaults are the faults that the simulator must notice, by name.
var deliberateFaults = map[string]Fault{
	"TrustAnySender": TrustAnySender, "KeepPodsOfOthers": KeepPodsOfOthers, "ListRemovesNewerPods": ListRemovesNewerPods,
	"RemovalEndsReservation": RemovalEndsReservation, "ReserveBeforeReady": ReserveBeforeReady, "ReserveWithoutRoom": ReserveWithoutRoom,
	"ReleaseOfAnyNode": ReleaseOfAnyNode, "ExpireBound": ExpireBound, "ExpireBeforeLateBind": ExpireBeforeLateBind,
	"ReuseTerm": ReuseTerm, "ReadyForAnyAssignment": ReadyForAnyAssignment, "NoResend": NoResend, "ReleaseUnanswered": ReleaseUnanswered,
	"ReleaseEarlierToo": ReleaseEarlierToo, "EarlierOfSettledPods": EarlierOfSettledPods, "IgnoreEarlier": IgnoreEarlier,
	"AckOfEarlierPlacement": AckOfEarlierPlacement, "AckOfFormerOwner": AckOfFormerOwner, "BindWithoutTenure": BindWithoutTenure,
	"BindBeforeAck": BindBeforeAck, "BindAfterRefusal": BindAfterRefusal, "BindWithOldAck": BindWithOldAck,
	"AnswerBeforeReservations": AnswerBeforeReservations, "DecideWithoutOwners": DecideWithoutOwners, "BelieveIncompleteReports": BelieveIncompleteReports,
	"FollowAnySender": FollowAnySender, "FollowUnverified": FollowUnverified, "FollowOlder": FollowOlder, "MissAssignments": MissAssignments, "ReadyWithoutPods": ReadyWithoutPods,
	"AnnounceAnyNode": AnnounceAnyNode, "ReplaceExistingNode": ReplaceExistingNode, "ForgetGoneNodes": ForgetGoneNodes, "ConfirmWaitingNodes": ConfirmWaitingNodes,
	"ConfirmBeforeList": ConfirmBeforeList, "UseNewNodesAtOnce": UseNewNodesAtOnce, "ListWithoutCheck": ListWithoutCheck,
	"ListOfEarlierAssignment": ListOfEarlierAssignment, "AnyListMakesReady": AnyListMakesReady, "ListOnNewConnection": ListOnNewConnection,
	"RemoveAtOwnerOnly": RemoveAtOwnerOnly, "KeepGuests": KeepGuests,
}

// TestEveryDeliberateFaultIsNoticed removes one guard after the other. The simulator must notice each.
func TestEveryDeliberateFaultIsNoticed(t *testing.T) {
	if os.Getenv("SIMULATE_FAULT_SEEDS") == "" {
		t.Skip("SIMULATE_FAULT_SEEDS, the number of seeds for each fault, is not set")
	}
	for name, fault := range deliberateFaults {
		t.Run(name, func(t *testing.T) {
			seeds := environmentNumber(t, "SIMULATE_FAULT_SEEDS", 0)
			found := make(chan string, 64)
			eachSeed(0, seeds, func(seed uint64) bool {
				_, err := simulate(seed, fault)
				if err != nil {
					select {
					case found <- formatFailure(seed, err):
					default:
					}
				}
				return err == nil
			})
			close(found)
			var failures []string
			for failure := range found {
				failures = append(failures, failure)
			}
			slices.Sort(failures)
			if len(failures) == 0 {
				t.Errorf("not noticed in %d seeds", seeds)
				return
			}
			t.Log(failures[0])
		})
	}
}
