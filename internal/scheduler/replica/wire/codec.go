package wire

import "github.com/fxamacker/cbor/v2"

// Messages are CBOR, as objects of Kubernetes can be.
var mode = func() cbor.EncMode {
	m, err := cbor.EncOptions{}.EncMode()
	if err != nil {
		panic(err)
	}
	return m
}()

// Encode makes bytes of a message.
func Encode(message any) ([]byte, error) { return mode.Marshal(message) }

// Decode makes a message of bytes.
func Decode(data []byte, message any) error { return cbor.Unmarshal(data, message) }
