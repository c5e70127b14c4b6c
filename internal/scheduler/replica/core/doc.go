// Package core is the protocol between scheduler replicas: their state and the rules by which they change it, without
// network, clock, goroutines and locks. The packages leader, member and holder bring messages and the time to these state
// machines, and carry out what they return.
//
// A call must not overlap with another call of the same [Leader], [Pending], [Member] or [Ledger]. Different ones may be
// called at the same time. The comments of [Output] and [MemberOutput] say in which order an output is carried out.
package core
