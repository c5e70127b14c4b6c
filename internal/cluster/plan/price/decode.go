package price

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// decode decodes a YAML node into the struct to which a pointer refers. Unlike yaml.Node.Decode, errors name
// the path of the field, such as machines[3].prices.spot.hour. Fields that the struct does not have, and keys
// that occur twice, are errors.
func decode(node *yaml.Node, into any) error {
	return decodeValue(node, reflect.ValueOf(into).Elem(), "")
}

func decodeValue(node *yaml.Node, into reflect.Value, path string) error {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	switch value := into.Interface().(type) {
	case time.Time:
		return decodeDate(node, into, path)
	case string:
		if node.Kind != yaml.ScalarNode || node.ShortTag() == "!!null" {
			return wrongKind(node, path, "text")
		}
		into.SetString(node.Value)
		return nil
	case float64:
		return decodeNumber(node, into, path)
	case int:
		if err := node.Decode(&value); err != nil || node.ShortTag() != "!!int" {
			return wrongKind(node, path, "a whole number")
		}
		into.SetInt(int64(value))
		return nil
	}
	switch into.Kind() {
	case reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		return decodeValue(node, into.Elem(), path)
	case reflect.Slice:
		return decodeSlice(node, into, path)
	case reflect.Map:
		return decodeMap(node, into, path)
	}
	return decodeStruct(node, into, path)
}

func decodeNumber(node *yaml.Node, into reflect.Value, path string) error {
	var number float64
	if err := node.Decode(&number); err != nil || !slices.Contains([]string{"!!int", "!!float"}, node.ShortTag()) {
		return wrongKind(node, path, "a number")
	}
	if math.IsNaN(number) || math.IsInf(number, 0) {
		return wrongKind(node, path, "a finite number")
	}
	into.SetFloat(number)
	return nil
}

func decodeDate(node *yaml.Node, into reflect.Value, path string) error {
	date, err := time.Parse(time.DateOnly, node.Value)
	if err != nil {
		return wrongKind(node, path, "a date such as 2026-07-30")
	}
	into.Set(reflect.ValueOf(date))
	return nil
}

func decodeSlice(node *yaml.Node, into reflect.Value, path string) error {
	if node.Kind != yaml.SequenceNode {
		return wrongKind(node, path, "a list")
	}
	into.Set(reflect.MakeSlice(into.Type(), len(node.Content), len(node.Content)))
	for i, element := range node.Content {
		if err := decodeValue(element, into.Index(i), fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return err
		}
	}
	return nil
}

func decodeMap(node *yaml.Node, into reflect.Value, path string) error {
	into.Set(reflect.MakeMap(into.Type()))
	return eachField(node, path, func(key, value *yaml.Node, field string) error {
		element := reflect.New(into.Type().Elem()).Elem()
		if err := decodeValue(value, element, field); err != nil {
			return err
		}
		into.SetMapIndex(reflect.ValueOf(key.Value).Convert(into.Type().Key()), element)
		return nil
	})
}

func decodeStruct(node *yaml.Node, into reflect.Value, path string) error {
	fields := map[string]reflect.Value{}
	var names []string
	for i := range into.NumField() {
		name := into.Type().Field(i).Tag.Get("yaml")
		fields[name], names = into.Field(i), append(names, name)
	}
	return eachField(node, path, func(key, value *yaml.Node, field string) error {
		into, known := fields[key.Value]
		if !known {
			return fmt.Errorf("line %d: %s: no such field; choose from %s", key.Line, field, strings.Join(names, ", "))
		}
		return decodeValue(value, into, field)
	})
}

// eachField calls a function for each key of a mapping, with its value and its path.
func eachField(node *yaml.Node, path string, call func(key, value *yaml.Node, field string) error) error {
	if node.Kind != yaml.MappingNode {
		return wrongKind(node, path, "fields")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		field := strings.TrimPrefix(path+"."+key.Value, ".")
		if seen[key.Value] {
			return fmt.Errorf("line %d: %s: occurs twice; remove one of them", key.Line, field)
		}
		seen[key.Value] = true
		if err := call(key, value, field); err != nil {
			return err
		}
	}
	return nil
}

// wrongKind returns an error that says what was expected and what was found.
func wrongKind(node *yaml.Node, path, want string) error {
	found := fmt.Sprintf("%q", node.Value)
	switch node.Kind {
	case yaml.SequenceNode:
		found = "a list"
	case yaml.MappingNode:
		found = "fields"
	}
	if path == "" {
		path = "the file"
	}
	return fmt.Errorf("line %d: %s: want %s, found %s", node.Line, path, want, found)
}
