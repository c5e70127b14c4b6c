// Package wire lets replicas of the scheduler, each of which owns some of the nodes,
// decide together. It knows nothing of plugins: what a replica answers is made, and
// understood, by package scheduler.
package wire

import (
	"slices"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// Ask is the question of a round: where pods of a class would go.
type Ask struct {
	// Pod is one of the pods, in the API's protobuf encoding, and Profile whose it is.
	Pod     []byte
	Profile string
	// Demands are the counters to have besides those that follow from the pod.
	Demands Demands
	// Offers of each group, and Steps of each offer, that are of use.
	Offers, Steps int
	// Only is the node that is asked about; "" means all.
	Only string
	// Why asks for the reasons of nodes that do not fit.
	Why bool
	// Walk asks for each node to be looked at by itself, because of what only this pod
	// asks of it. Except are nodes that are known not to fit.
	Walk   bool     `cbor:",omitempty"`
	Except []string `cbor:",omitempty"`
	// InUse says that pods use what the pod claims, on whatever node.
	InUse bool `cbor:",omitempty"`
	// Whole asks for the node itself, if only one is asked about.
	Whole bool `cbor:",omitempty"`
	// Preempt asks for the node where the pod would fit if others left. Counters are
	// what all shards count together, with what values in them stand for.
	Preempt  bool                   `cbor:",omitempty"`
	Counters []index.CounterSummary `cbor:",omitempty"`
	Values   []string               `cbor:",omitempty"`
}

// Demands are topology keys that other pods' terms refer to.
type Demands struct {
	// Forbid are those of required anti-affinity, and Prefer those of preferences, both
	// in order.
	Forbid, Prefer []string
}

// Without are those demands that are not among others.
func (d Demands) Without(others Demands) Demands {
	without := func(keys, others []string) []string {
		return slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return slices.Contains(others, key) })
	}
	return Demands{Forbid: without(d.Forbid, others.Forbid), Prefer: without(d.Prefer, others.Prefer)}
}

// And are both demands.
func (d Demands) And(others Demands) Demands {
	and := func(keys, others []string) []string {
		all := slices.Concat(keys, others)
		slices.Sort(all)
		return slices.Compact(all)
	}
	return Demands{Forbid: and(d.Forbid, others.Forbid), Prefer: and(d.Prefer, others.Prefer)}
}

// Empty says whether there are none.
func (d Demands) Empty() bool { return len(d.Forbid)+len(d.Prefer) == 0 }

// Answer is what one shard says, or several.
type Answer struct {
	// Missing are demands that were not made, and would have to be; there is no summary
	// then.
	Missing Demands
	Summary index.Summary
	// Values and Profiles are what the numbers in the summary stand for; the first two
	// values are none, and the empty one. A profile has a byte for each image of the pod.
	Values, Profiles []string
	// Names of the nodes that are offered, by [index.Offer.Slot].
	Names []string
	// Images of the pod, as it has them.
	Images []Image
	// Refusals say why nodes do not fit, as far as that is not for other pods.
	Refusals []Refusal
	// Node is the one that was asked about, and Pods are on it, in the API's encoding.
	Node []byte   `cbor:",omitempty"`
	Pods [][]byte `cbor:",omitempty"`
	// InUse says that pods use what the pod claims.
	InUse bool `cbor:",omitempty"`
	// Candidates are the best nodes of shards where others could leave for the pod, and
	// Ineligible is why none has to.
	Candidates []Candidate `cbor:",omitempty"`
	Ineligible string      `cbor:",omitempty"`
	// Visible are the labels of pods that others' selectors look at.
	Visible []string
	// Errors say which shards could not answer, and why.
	Errors []string
	// Absent are replicas that did not answer in time, or could not.
	Absent []string
}

// Candidate is a node where a pod fits if others leave.
type Candidate struct {
	Node string
	// Victims are the pods that leave, in the API's encoding, and Violations how many
	// disruption budgets that violates.
	Victims    [][]byte
	Violations int64
}

// NoValue stands for a label that is not there, where there are numbers for values.
const NoValue = "\x00"

// Image is how many nodes have an image, and its size in bytes.
type Image struct{ Nodes, Size int64 }

// Refusal is the status with which a plugin refuses so many nodes.
type Refusal struct {
	Code    int
	Plugin  string
	Reasons []string
	Nodes   int
}

func (r *Refusal) same(other *Refusal) bool {
	return r.Code == other.Code && r.Plugin == other.Plugin && slices.Equal(r.Reasons, other.Reasons)
}

// Fold makes one answer of those of several shards, with no more than so many offers
// of each group.
func Fold(answers []*Answer, offers int) *Answer {
	if len(answers) == 1 {
		return answers[0]
	}
	all := &Answer{Values: []string{NoValue, ""}}
	if len(answers) == 0 {
		return all
	}
	summaries := make([]index.Summary, 0, len(answers))
	values, profiles := dictionary{}, dictionary{}
	values.number(NoValue)
	values.number("")
	for _, a := range answers {
		all.Missing = all.Missing.And(a.Missing)
		all.Errors = append(all.Errors, a.Errors...)
		all.Absent = append(all.Absent, a.Absent...)
		all.Visible = append(all.Visible, a.Visible...)
		all.fold(a, &values, &profiles)
		summaries = append(summaries, a.Summary)
	}
	slices.Sort(all.Visible)
	all.Visible = slices.Compact(all.Visible)
	all.Values, all.Profiles = values.words, profiles.words
	all.Summary = index.Fold(summaries, offers)
	all.compact()
	return all
}

// compact drops the names of nodes that are not offered any more. Without that an answer
// had those of all replicas below, and the leader got 128 of each group from each.
func (a *Answer) compact() {
	var names []string
	for g := range a.Summary.Groups {
		tiers := a.Summary.Groups[g].Tiers
		for t := range tiers {
			// Answers may have the same offers in memory.
			offers := slices.Clone(tiers[t].Offers)
			for o := range offers {
				names = append(names, a.Names[offers[o].Slot])
				offers[o].Slot = index.Slot(len(names) - 1)
			}
			tiers[t].Offers = offers
		}
	}
	a.Names = names
}

// fold adds all of an answer but its summary, and makes the numbers in that the same
// as those of the others.
func (a *Answer) fold(other *Answer, values, profiles *dictionary) {
	other.Summary.Renumber(
		func(value int32) int32 { return values.number(other.Values[value]) },
		func(profile int32) int32 { return profiles.number(other.Profiles[profile]) },
	)
	first := index.Slot(len(a.Names))
	a.Names = append(a.Names, other.Names...)
	for g := range other.Summary.Groups {
		for _, tier := range other.Summary.Groups[g].Tiers {
			for o := range tier.Offers {
				tier.Offers[o].Slot += first
			}
		}
	}
	for len(a.Images) < len(other.Images) {
		a.Images = append(a.Images, Image{})
	}
	for i, image := range other.Images {
		a.Images[i].Nodes += image.Nodes
		a.Images[i].Size = max(a.Images[i].Size, image.Size)
	}
	a.InUse = a.InUse || other.InUse
	a.Candidates = append(a.Candidates, other.Candidates...)
	if a.Ineligible == "" {
		a.Ineligible = other.Ineligible
	}
	for i := range other.Refusals {
		a.Refuse(other.Refusals[i])
	}
	if len(other.Node) > 0 {
		a.Node, a.Pods = other.Node, other.Pods
	}
}

// Refuse adds nodes that are refused.
func (a *Answer) Refuse(refusal Refusal) {
	for i := range a.Refusals {
		if a.Refusals[i].same(&refusal) {
			a.Refusals[i].Nodes += refusal.Nodes
			return
		}
	}
	a.Refusals = append(a.Refusals, refusal)
}

// dictionary numbers words.
type dictionary struct {
	words   []string
	numbers map[string]int32
}

func (d *dictionary) number(word string) int32 {
	if number, known := d.numbers[word]; known {
		return number
	}
	if d.numbers == nil {
		d.numbers = map[string]int32{}
	}
	number := int32(len(d.words))
	d.words = append(d.words, word)
	d.numbers[word] = number
	return number
}
