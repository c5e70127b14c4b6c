package attach_test

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest/generate"
)

// mutator changes an object in one place after another, by reflection, so that it also reaches fields that a
// later Kubernetes release adds.
type mutator struct {
	// visit is called after each change.
	visit func(path string)
	// open are the types of the pointers and list elements that were created on the path, which ends
	// recursion in recursive types.
	open []reflect.Type
}

// eachMutation calls visit with copies of an object that differ from it in one place, and the path to the
// place.
func eachMutation[T any](object *T, deepCopy func(*T) *T, visit func(path string, changed *T)) {
	base := deepCopy(object)
	m := &mutator{visit: func(path string) { visit(path, deepCopy(base)) }}
	m.change(reflect.ValueOf(base).Elem(), "", nil)
}

// change changes a value in each place and restores it. stored is called after each change, and before visit,
// to store the value in the map that contains it; nil if no map contains it.
func (m *mutator) change(v reflect.Value, path string, stored func()) {
	set := func(value reflect.Value) {
		before := reflect.New(v.Type()).Elem()
		before.Set(v)
		if reflect.DeepEqual(before.Interface(), value.Interface()) {
			return
		}
		v.Set(value)
		m.visited(path, stored)
		v.Set(before)
		if stored != nil {
			stored()
		}
	}
	switch value := v.Interface().(type) {
	case resource.Quantity:
		for _, changed := range otherQuantities(value) {
			set(reflect.ValueOf(changed))
		}
		return
	case metav1.Time:
		set(reflect.ValueOf(metav1.Time{}))
		set(reflect.ValueOf(metav1.Time{Time: time.Unix(1<<30, 0)}))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.IsExported() {
				m.change(v.Field(i), path+"."+field.Name, stored)
			}
		}
	case reflect.Pointer:
		m.changePointer(v, path, set, stored)
	case reflect.Slice:
		m.changeSlice(v, path, set, stored)
	case reflect.Map:
		m.changeMap(v, path, set, stored)
	default:
		for _, scalar := range otherScalars(v) {
			set(scalar)
		}
	}
}

func (m *mutator) visited(path string, stored func()) {
	if stored != nil {
		stored()
	}
	m.visit(path)
}

// changePointer sets a pointer to nil and changes the value to which it points. It sets a nil pointer to a new
// value first.
func (m *mutator) changePointer(v reflect.Value, path string, set func(reflect.Value), stored func()) {
	if !v.IsNil() {
		set(reflect.Zero(v.Type()))
		m.change(v.Elem(), path, stored)
		return
	}
	m.opening(v.Type(), func() {
		v.Set(reflect.New(v.Type().Elem()))
		m.visited(path+"=new", stored)
		m.change(v.Elem(), path+"=new", stored)
		v.Set(reflect.Zero(v.Type()))
		if stored != nil {
			stored()
		}
	})
}

// changeSlice removes, repeats, adds and changes elements.
func (m *mutator) changeSlice(v reflect.Value, path string, set func(reflect.Value), stored func()) {
	before := v.Slice(0, v.Len())
	for i := range before.Len() {
		rest := reflect.MakeSlice(v.Type(), 0, before.Len())
		rest = reflect.AppendSlice(rest, before.Slice(0, i))
		set(reflect.AppendSlice(rest, before.Slice(i+1, before.Len())))
		set(reflect.Append(reflect.AppendSlice(reflect.MakeSlice(v.Type(), 0, before.Len()+1), before), before.Index(i)))
		m.change(v.Index(i), fmt.Sprintf("%s[%d]", path, i), stored)
	}
	m.opening(v.Type(), func() {
		longer := reflect.MakeSlice(v.Type(), before.Len()+1, before.Len()+1)
		reflect.Copy(longer, before)
		v.Set(longer)
		m.visited(path+"[new]", stored)
		if before.Len() == 0 {
			m.change(v.Index(0), path+"[new]", stored)
		}
		v.Set(before)
		if before.Len() == 0 {
			v.Set(reflect.Zero(v.Type()))
		}
		if stored != nil {
			stored()
		}
	})
}

// changeMap removes, adds and changes entries.
func (m *mutator) changeMap(v reflect.Value, path string, set func(reflect.Value), stored func()) {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return compareStrings(a.String(), b.String()) })
	copied := func() reflect.Value {
		result := reflect.MakeMap(v.Type())
		for _, key := range keys {
			result.SetMapIndex(key, v.MapIndex(key))
		}
		return result
	}
	entry := func(key, value reflect.Value, path string) {
		before := reflect.New(v.Type()).Elem()
		before.Set(v)
		changed := copied()
		v.Set(changed)
		element := reflect.New(v.Type().Elem()).Elem()
		element.Set(value)
		put := func() {
			v.SetMapIndex(key, element)
			if stored != nil {
				stored()
			}
		}
		if !copied().MapIndex(key).IsValid() {
			m.visited(path, put)
		}
		m.change(element, path, put)
		v.Set(before)
		if stored != nil {
			stored()
		}
	}
	for _, key := range keys {
		without := copied()
		without.SetMapIndex(key, reflect.Value{})
		set(without)
		entry(key, v.MapIndex(key), fmt.Sprintf("%s[%s]", path, key))
	}
	for _, word := range newKeys(v.Type().Key()) {
		key := reflect.ValueOf(word).Convert(v.Type().Key())
		if v.IsNil() || !v.MapIndex(key).IsValid() {
			entry(key, reflect.Zero(v.Type().Elem()), fmt.Sprintf("%s[+%s]", path, word))
		}
	}
}

// opening calls f unless a value of the type is being created already.
func (m *mutator) opening(t reflect.Type, f func()) {
	if slices.Contains(m.open, t) {
		return
	}
	m.open = append(m.open, t)
	f()
	m.open = m.open[:len(m.open)-1]
}

func compareStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// otherQuantities returns quantities that differ much or little from the given one.
func otherQuantities(q resource.Quantity) []resource.Quantity {
	little, much, fraction := q.DeepCopy(), q.DeepCopy(), q.DeepCopy()
	little.Add(resource.MustParse("50m"))
	fraction.Add(resource.MustParse("100u"))
	much.Add(q)
	return []resource.Quantity{{}, little, much, fraction, resource.MustParse("1"), resource.MustParse("3Gi")}
}

// otherScalars returns other values of the type of a boolean, number or string.
func otherScalars(v reflect.Value) []reflect.Value {
	var values []reflect.Value
	add := func(value any) { values = append(values, reflect.ValueOf(value).Convert(v.Type())) }
	switch v.Kind() {
	case reflect.Bool:
		add(!v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		for _, number := range []int64{v.Int() + 1, v.Int() - 1, 0, 1, 100} {
			add(number)
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		add(v.Uint() + 1)
	case reflect.Float32, reflect.Float64:
		add(v.Float() + 1)
	case reflect.String:
		for _, word := range wordsOf(v.Type()) {
			add(word)
		}
	}
	return values
}

// wordsOf returns the values to try for a type of strings.
func wordsOf(t reflect.Type) []string {
	if words, known := words[t]; known {
		return words
	}
	if t == reflect.TypeFor[string]() {
		return texts
	}
	return []string{"", "x"}
}

// newKeys returns the keys to add to maps.
func newKeys(t reflect.Type) []string {
	if t == reflect.TypeFor[v1.ResourceName]() {
		return []string{"cpu", "memory", "ephemeral-storage", "pods", "example.com/gpu", "hugepages-2Mi", "example.com/other"}
	}
	return []string{"app", "disk", "rack", "version", v1.LabelTopologyZone, v1.LabelHostname, "x"}
}

// texts are the words that mean something in the world of the mutation tests.
var texts = []string{
	"", "x", "a", "b", "ssd", "web", "db", "2", "10", "yes", "team-a", "default", "node-1", "node-2", "disk", "rack", "cores", "app", "version",
	v1.LabelTopologyZone, v1.LabelHostname, "gpu", "spot", "nginx", "redis:7", "127.0.0.1", "0.0.0.0", v1.PodReasonInfeasible, v1.PodReasonDeferred,
	generate.UserNamespacesFeature, "metadata.name", "in-a", "once",
}

// words are the values to try for types of strings that have a fixed set of values.
var words = map[reflect.Type][]string{
	reflect.TypeFor[v1.TaintEffect]():                   {"", "NoSchedule", "PreferNoSchedule", "NoExecute"},
	reflect.TypeFor[v1.TolerationOperator]():            {"", "Exists", "Equal", "Lt", "Gt"},
	reflect.TypeFor[v1.NodeSelectorOperator]():          {"", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"},
	reflect.TypeFor[metav1.LabelSelectorOperator]():     {"", "In", "NotIn", "Exists", "DoesNotExist"},
	reflect.TypeFor[v1.UnsatisfiableConstraintAction](): {"", "DoNotSchedule", "ScheduleAnyway"},
	reflect.TypeFor[v1.NodeInclusionPolicy]():           {"", "Honor", "Ignore"},
	reflect.TypeFor[v1.ContainerRestartPolicy]():        {"", "Always", "Never"},
	reflect.TypeFor[v1.ContainerRestartRuleAction]():    {"", "Restart", "RestartAllContainers"},
	reflect.TypeFor[v1.Protocol]():                      {"", "TCP", "UDP"},
	reflect.TypeFor[v1.PodConditionType]():              {"", "PodResizePending", "PodScheduled"},
	reflect.TypeFor[v1.PodPhase]():                      {"", "Pending", "Running", "Succeeded"},
}
