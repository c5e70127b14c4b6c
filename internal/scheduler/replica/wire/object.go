package wire

// MarshalObject returns the protobuf encoding of an API object.
func MarshalObject(object interface{ Marshal() ([]byte, error) }) []byte {
	data, err := object.Marshal()
	if err != nil {
		// Marshalling to memory fails only for an object that no API server sends.
		panic(err)
	}
	return data
}
