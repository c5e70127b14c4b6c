package intern

type Numbers map[string]int32

// of is the number of a key, counted from 0; whether it is new.
func (n Numbers) Of(key []byte) (int32, bool) {
	if number, known := n[string(key)]; known {
		return number, false
	}
	number := int32(len(n))
	n[string(key)] = number
	return number, true
}
