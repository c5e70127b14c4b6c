package index

import "slices"

// Class returns the class with a key and applies all changes to it. If there is no such class, or its Spec
// is stale, it makes a new class with the Spec that create returns. It returns the error of create or of a
// verdict.
func (x *Index) Class(key string, create func() (Spec, error)) (*Class, error) {
	class := x.classes[key]
	if class != nil && !class.spec.Stale() {
		class.usedAgain = true
		class.catchUp()
	} else {
		spec, err := create()
		if err != nil {
			delete(x.classes, key)
			return nil, err
		}
		class = &Class{view: view{spec: spec}, x: x, key: key}
		class.rebuild()
		x.addClass(class)
	}
	x.clock++
	class.used = x.clock
	class.settle()
	if err := class.failure; err != nil {
		delete(x.classes, key)
		return nil, err
	}
	return class, nil
}

// Classes returns the number of classes.
func (x *Index) Classes() int { return len(x.classes) }

// addClass adds a class, and drops others if a limit is exceeded. Classes that were used only once have
// lower limits, because a workload may create any number of them.
func (x *Index) addClass(class *Class) {
	x.classes[class.key] = class
	x.young = append(x.young, class)
	for len(x.young) > 1 && (len(x.young) > maxYoung || len(x.young)*len(x.states) > maxYoungEntries) {
		if oldest := x.young[0]; !oldest.usedAgain {
			x.drop(oldest)
		}
		x.young[0] = nil
		x.young = x.young[1:]
	}
	if len(x.classes) > x.limit || len(x.classes)*len(x.states) > maxEntries {
		x.dropLeastRecentlyUsed()
	}
}

// drop removes a class, unless a newer class has replaced it under the same key.
func (x *Index) drop(class *Class) {
	if x.classes[class.key] == class {
		delete(x.classes, class.key)
	}
}

// dropLeastRecentlyUsed drops the least recently used half of the classes.
func (x *Index) dropLeastRecentlyUsed() {
	ages := make([]int64, 0, len(x.classes))
	for _, class := range x.classes {
		ages = append(ages, class.used)
	}
	slices.Sort(ages)
	for _, class := range x.classes {
		if class.used <= ages[len(ages)/2] {
			x.drop(class)
		}
	}
}

// Temporary returns a class that the index does not keep, for one query with [Class.SummarizeEach]. If the Spec has no counters,
// the class has no verdicts, and no nominated pods may be passed to the query.
func (x *Index) Temporary(spec Spec) (*Class, error) {
	c := &Class{view: view{spec: spec}, x: x}
	if len(spec.Counters) > 0 {
		c.rebuild()
		c.settle()
		return c, c.failure
	}
	c.view = newView(spec)
	c.topologies = map[ShapeID]*Topology{}
	return c, nil
}
