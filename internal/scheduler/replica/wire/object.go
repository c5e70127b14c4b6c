package wire

// encoded is an object in the API's encoding.
func MarshalObject(object interface{ Marshal() ([]byte, error) }) []byte {
	data, err := object.Marshal()
	if err != nil {
		// To memory there is no other reason than an object that no server would send.
		panic(err)
	}
	return data
}
