package wire

import (
	"slices"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// Fold merges the answers of several replicas into one answer with at most the given number of offers
// for each group.
func Fold(answers []*Answer, offers int) *Answer {
	if len(answers) == 1 {
		return answers[0]
	}
	merged := &Answer{Values: []string{NoValue, ""}}
	if len(answers) == 0 {
		return merged
	}
	summaries := make([]index.Summary, 0, len(answers))
	values, imageSets, refusals := dictionary{}, dictionary{}, Refusals{}
	values.number(NoValue)
	values.number("")
	for _, a := range answers {
		merged.Missing = merged.Missing.Union(a.Missing)
		merged.Errors = append(merged.Errors, a.Errors...)
		merged.Absent = append(merged.Absent, a.Absent...)
		merged.addLabels(a)
		merged.add(a, &values, &imageSets, &refusals)
		summaries = append(summaries, a.Summary)
	}
	merged.Values, merged.ImageSets = values.words, imageSets.words
	merged.Refusals = refusals.List()
	merged.Summary = index.Fold(summaries, offers)
	merged.dropUnusedNames()
	return merged
}

// dropUnusedNames removes the names of nodes that the merged summary does not offer. Otherwise the names
// of all offers of all replicas would accumulate on the way to the leader.
func (a *Answer) dropUnusedNames() {
	var names []string
	for g := range a.Summary.Groups {
		tiers := a.Summary.Groups[g].Tiers
		for t := range tiers {
			// Several answers may share one slice of offers in memory.
			offers := slices.Clone(tiers[t].Offers)
			for o := range offers {
				names = append(names, a.Names[offers[o].Node])
				offers[o].Node = index.NodeID(len(names) - 1)
			}
			tiers[t].Offers = offers
		}
	}
	a.Names = names
}

// add adds the fields of another answer that Fold does not merge itself. It replaces the numbers in the
// other answer's summary by those of the dictionaries.
func (a *Answer) add(other *Answer, values, imageSets *dictionary, refusals *Refusals) {
	other.Renumber(
		func(value int32) int32 { return values.number(other.Values[value]) },
		func(imageSet int32) int32 { return imageSets.number(other.ImageSets[imageSet]) },
	)
	first := index.NodeID(len(a.Names))
	a.Names = append(a.Names, other.Names...)
	for g := range other.Summary.Groups {
		for _, tier := range other.Summary.Groups[g].Tiers {
			for o := range tier.Offers {
				tier.Offers[o].Node += first
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
	a.InUse = union(a.InUse, other.InUse)
	a.Candidates = append(a.Candidates, other.Candidates...)
	if a.Ineligible == "" {
		a.Ineligible = other.Ineligible
	}
	if a.Failed == "" {
		// Upstream also reports only the first error.
		a.Failed = other.Failed
	}
	for _, claim := range other.UnavailableClaims {
		a.AddUnavailable(claim)
	}
	for i := range other.Refusals {
		refusals.Add(other.Refusals[i])
	}
	if len(other.Node) > 0 {
		a.Node, a.Pods = other.Node, other.Pods
	}
}

// TranslateCounters returns counters for a query ([Query.Counters]), and only those values to which they refer. Numbers
// of values in the given counters are indexes into values.
func TranslateCounters(counters []index.CounterSummary, values []string) ([]index.CounterSummary, []string) {
	used := dictionary{}
	translated := slices.Clone(counters)
	for i := range translated {
		translated[i].Values = slices.Clone(translated[i].Values)
		for j := range translated[i].Values {
			value := &translated[i].Values[j].Value
			*value = used.number(values[*value])
		}
	}
	return translated, used.words
}

// dictionary assigns numbers to strings.
type dictionary struct {
	words   []string
	numbers map[string]int32
}

// number returns the number of a word and adds the word if it is new.
func (d *dictionary) number(word string) int32 {
	if number, ok := d.numbers[word]; ok {
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
