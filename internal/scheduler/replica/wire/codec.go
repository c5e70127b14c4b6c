package wire

import (
	"encoding/binary"
	"errors"

	"github.com/fxamacker/cbor/v2"
	"google.golang.org/grpc/encoding"
)

// maxElements is the maximal number of elements of one array. The longest arrays have an element for each node: an owner
// may have most of a million nodes, and a relay merges the answers of several owners.
const maxElements = 1 << 21

// maxEmpty returns the maximal number of nulls, and of maps with at most one entry, in a message of this many bytes. As
// elements of an array, these become structs of up to 200 bytes, and all other values have at least 5 bytes. So a message
// needs at most about 65 times its size. In our own messages, less than one byte in 8 is such an element.
func maxEmpty(bytes int) int { return 1<<16 + bytes/8 }

// encMode is the CBOR mode of all messages: the library's defaults.
var encMode = func() cbor.EncMode {
	mode, err := cbor.EncOptions{}.EncMode()
	if err != nil {
		panic(err)
	}
	return mode
}()

// decMode is the CBOR mode of all received messages. [Encode] makes no items of indefinite length.
var decMode = func() cbor.DecMode {
	mode, err := cbor.DecOptions{MaxArrayElements: maxElements, IndefLength: cbor.IndefLengthForbidden}.DecMode()
	if err != nil {
		panic(err)
	}
	return mode
}()

// Encode returns the CBOR encoding of a message.
func Encode(message any) ([]byte, error) { return encMode.Marshal(message) }

// Decode decodes a message from CBOR.
func Decode(data []byte, message any) error {
	if countEmpty(data) > maxEmpty(len(data)) {
		return errors.New("the message has too many empty elements")
	}
	return decMode.Unmarshal(data, message)
}

// countEmpty returns the number of nulls, undefined values and maps with at most one entry in a message. It ignores what
// follows a malformed item: the decoder rejects such a message before it allocates memory.
func countEmpty(data []byte) (empty int) {
	const byteString, textString, mapping, simple, null, undefined = 2, 3, 5, 7, 22, 23
	for len(data) > 0 {
		major, value := data[0]>>5, uint64(data[0]&31)
		data = data[1:]
		if value >= 24 {
			width := 1 << (value - 24)
			if width > 8 || len(data) < width {
				break
			}
			var argument [8]byte
			copy(argument[8-width:], data[:width])
			value, data = binary.BigEndian.Uint64(argument[:]), data[width:]
		}
		switch {
		case major == byteString || major == textString:
			if value > uint64(len(data)) {
				return empty
			}
			data = data[value:]
		case major == mapping && value <= 1, major == simple && (value == null || value == undefined):
			empty++
		}
	}
	return empty
}

// codec is gRPC's interface to the encoding.
type codec struct{}

func (codec) Name() string { return "cbor" }

func (codec) Marshal(message any) ([]byte, error) { return Encode(message) }

// Unmarshal decodes a message. For gRPC, an answer that cannot be decoded is like a failure of the connection, so the
// error is kept in the answer.
func (codec) Unmarshal(data []byte, message any) error {
	if a, ok := message.(*receivedAnswer); ok {
		a.err = Decode(data, &a.answer)
		return nil
	}
	return Decode(data, message)
}

// receivedAnswer is an answer, or the error with which its decoding has failed.
type receivedAnswer struct {
	answer Answer
	err    error
}

func init() { encoding.RegisterCodec(codec{}) }
