package shard

import "github.com/fxamacker/cbor/v2"

// Messages are CBOR, as objects of Kubernetes can be.
var encoding = func() cbor.EncMode {
	mode, err := cbor.EncOptions{}.EncMode()
	if err != nil {
		panic(err)
	}
	return mode
}()

// Encode makes bytes of a message.
func Encode(message any) ([]byte, error) { return encoding.Marshal(message) }

// Decode makes a message of bytes.
func Decode(data []byte, message any) error { return cbor.Unmarshal(data, message) }
