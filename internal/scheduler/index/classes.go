package index

import "slices"

// Class returns the class with a key, made by create if it is not there, and up to
// date.
func (x *Index) Class(key string, create func() (Spec, error)) (*Class, error) {
	class := x.classes[key]
	if class != nil && !class.spec.Stale() {
		class.again = true
		class.catchUp()
	} else {
		spec, err := create()
		if err != nil {
			delete(x.classes, key)
			return nil, err
		}
		class = &Class{view: view{spec: spec}, x: x, key: key}
		class.rebuild()
		x.keep(class)
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

// Classes is the number of classes that are kept.
func (x *Index) Classes() int { return len(x.classes) }

// keep adds a class, and drops some if there are too many or they know too much.
// Those that were used only once go first: there may be no end to them.
func (x *Index) keep(class *Class) {
	x.classes[class.key] = class
	x.young = append(x.young, class)
	for len(x.young) > 1 && (len(x.young) > maxYoung || len(x.young)*len(x.states) > maxYoungEntries) {
		if oldest := x.young[0]; !oldest.again {
			x.drop(oldest)
		}
		x.young[0] = nil
		x.young = x.young[1:]
	}
	if len(x.classes) > x.limit || len(x.classes)*len(x.states) > maxEntries {
		x.halve()
	}
}

func (x *Index) drop(class *Class) {
	if x.classes[class.key] == class {
		delete(x.classes, class.key)
	}
}

// halve drops those classes that were not used for the longest time.
func (x *Index) halve() {
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
