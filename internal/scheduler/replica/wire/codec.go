package wire

import (
	"github.com/fxamacker/cbor/v2"
	"google.golang.org/grpc/encoding"
)

// encMode is the CBOR mode of all messages: the library's defaults.
var encMode = func() cbor.EncMode {
	mode, err := cbor.EncOptions{}.EncMode()
	if err != nil {
		panic(err)
	}
	return mode
}()

// Encode returns the CBOR encoding of a message.
func Encode(message any) ([]byte, error) { return encMode.Marshal(message) }

// Decode decodes a message from CBOR.
func Decode(data []byte, message any) error { return cbor.Unmarshal(data, message) }

// codec is gRPC's interface to the encoding.
type codec struct{}

func (codec) Name() string { return "cbor" }

func (codec) Marshal(message any) ([]byte, error) { return Encode(message) }

func (codec) Unmarshal(data []byte, message any) error { return Decode(data, message) }

func init() { encoding.RegisterCodec(codec{}) }
