package intern

// Numbers maps keys to numbers, counted from 0 in the order of their first use.
type Numbers map[string]int32

// Of returns the number of a key, and whether the key is new.
func (n Numbers) Of(key []byte) (int32, bool) {
	if number, known := n[string(key)]; known {
		return number, false
	}
	number := int32(len(n))
	n[string(key)] = number
	return number, true
}
