package clusterfile

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const (
	// maxObjectBytes is the largest size of an object. API servers accept at most 3 MiB in a request.
	maxObjectBytes = 16 << 20
	// maxDocumentBytes is the largest size of a YAML document, which has to be in memory as a whole. A List in
	// JSON is read object by object, so it may be larger.
	maxDocumentBytes = 256 << 20
	// maxTextBytes limits what is read from one file, so that an endless input ends with an error.
	maxTextBytes = 16 << 30
)

// lenient ignores unknown fields, as in exports of a newer Kubernetes. strict rejects them.
var (
	lenient = scheme.Codecs.UniversalDeserializer()
	strict  = serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
)

// textReader reads objects in JSON or YAML.
type textReader struct {
	source  string
	decoder runtime.Decoder
	// wanted returns whether objects of a kind are to be decoded. The others are passed to skipped.
	wanted  func(schema.GroupVersionKind) bool
	skipped func(schema.GroupVersionKind)
	each    func(runtime.Object) error
}

// read reads a file that has one or more documents.
func (t *textReader) read(r *bufio.Reader) error {
	first, err := firstByte(r)
	if err != nil {
		return fmt.Errorf("%s: %w", t.source, err)
	}
	limited := &limitedReader{reader: r, left: maxTextBytes, message: fmt.Sprintf("it is larger than %d GiB; use a snapshot of the store", maxTextBytes>>30)}
	if first == '{' || first == '[' {
		return t.json(limited)
	}
	return t.yaml(limited)
}

// firstByte returns the first byte that is not white space. It does not consume this byte.
func firstByte(r *bufio.Reader) (byte, error) {
	for {
		b, err := r.ReadByte()
		switch {
		case errors.Is(err, io.EOF):
			return 0, errors.New("it is empty; expected Kubernetes objects in JSON or YAML, or a snapshot")
		case err != nil:
			return 0, err
		case !strings.ContainsRune(" \t\r\n", rune(b)):
			return b, r.UnreadByte()
		}
	}
}

// limitedReader fails after a number of bytes. Its owner may set the number again.
type limitedReader struct {
	reader  io.Reader
	left    int64
	message string
}

// Read implements [io.Reader].
func (l *limitedReader) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errors.New(l.message)
	}
	n, err := l.reader.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}

// yaml reads YAML documents.
func (t *textReader) yaml(r io.Reader) error {
	tooLong := fmt.Sprintf("a YAML document is larger than %d MiB; use `-o json`, which is read object by object", maxDocumentBytes>>20)
	limited := &limitedReader{reader: r, message: tooLong}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(limited))
	for {
		limited.left = maxDocumentBytes
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", t.source, err)
		}
		converted, err := yaml.YAMLToJSON(document)
		if err != nil {
			return fmt.Errorf("%s: it is neither YAML nor JSON: %w", t.source, firstLine(err))
		}
		if string(converted) == "null" {
			continue
		}
		if err := t.json(bytes.NewReader(converted)); err != nil {
			return err
		}
	}
}

// json reads a sequence of JSON objects.
func (t *textReader) json(r io.Reader) error {
	limited := &limitedReader{reader: r, message: fmt.Sprintf("an object is larger than %d MiB", maxObjectBytes>>20)}
	d := &document{textReader: t, decoder: json.NewDecoder(limited), limit: limited}
	for {
		limited.left = maxObjectBytes
		token, err := d.decoder.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return d.malformed(err)
		}
		if token != json.Delim('{') {
			return d.malformed(fmt.Errorf("expected an object, got %v", token))
		}
		if err := d.object(); err != nil {
			return err
		}
	}
}

// document reads a JSON object after its opening brace: a List, item by item, or a single object.
type document struct {
	*textReader
	decoder *json.Decoder
	limit   *limitedReader
}

func (d *document) malformed(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("it ends within an object; export it again")
	}
	return fmt.Errorf("%s: at byte %d: %w", d.source, d.decoder.InputOffset(), firstLine(err))
}

// object reads the fields of an object up to its closing brace.
func (d *document) object() error {
	fields, isList := map[string]json.RawMessage{}, false
	for d.decoder.More() {
		token, err := d.decoder.Token()
		if err != nil {
			return d.malformed(err)
		}
		name, _ := token.(string)
		if name == "items" {
			isList = true
			if err := d.items(fields); err != nil {
				return err
			}
			continue
		}
		var value json.RawMessage
		if err := d.decoder.Decode(&value); err != nil {
			return d.malformed(err)
		}
		fields[name] = value
	}
	if _, err := d.decoder.Token(); err != nil {
		return d.malformed(err)
	}
	if isList {
		return nil
	}
	raw, err := json.Marshal(fields)
	if err != nil {
		return d.malformed(err)
	}
	return d.decode(raw, schema.GroupVersionKind{})
}

// items reads the items of a List. In a typed list, such as a PodList, items have no kind of their own.
func (d *document) items(list map[string]json.RawMessage) error {
	if token, err := d.decoder.Token(); err != nil || token != json.Delim('[') {
		if err == nil {
			err = errors.New("the field items is not a list")
		}
		return d.malformed(err)
	}
	kind := itemKind(list)
	for d.decoder.More() {
		d.limit.left = maxObjectBytes
		var raw json.RawMessage
		if err := d.decoder.Decode(&raw); err != nil {
			return d.malformed(err)
		}
		if err := d.decode(raw, kind); err != nil {
			return err
		}
	}
	d.limit.left = maxObjectBytes
	if _, err := d.decoder.Token(); err != nil {
		return d.malformed(err)
	}
	return nil
}

// itemKind returns the kind of the items of a typed list, from the fields before the items.
func itemKind(list map[string]json.RawMessage) schema.GroupVersionKind {
	var kind, version string
	_ = json.Unmarshal(list["kind"], &kind)
	_ = json.Unmarshal(list["apiVersion"], &version)
	item, typed := strings.CutSuffix(kind, "List")
	if !typed || item == "" {
		return schema.GroupVersionKind{}
	}
	return schema.FromAPIVersionAndKind(version, item)
}

// decode decodes an object. defaults is its kind, if the object does not state it.
func (d *document) decode(raw []byte, defaults schema.GroupVersionKind) error {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return d.malformed(err)
	}
	if head.Kind == "" {
		head.Kind, head.APIVersion = defaults.Kind, defaults.GroupVersion().String()
	}
	if head.Kind == "" {
		return fmt.Errorf("%s: object %q has no kind; use the output of `kubectl get -o json` or `-o yaml`", d.source, shorten(head.Metadata.Name))
	}
	kind := schema.FromAPIVersionAndKind(head.APIVersion, head.Kind)
	if !d.wanted(kind) {
		d.skipped(kind)
		return nil
	}
	object, err := decodeSafely(d.textReader.decoder, raw, &kind)
	if err != nil {
		return fmt.Errorf("%s: decoding %s %q: %w", d.source, shorten(head.Kind), shorten(head.Metadata.Name), firstLine(err))
	}
	return d.each(object)
}

// decodeSafely decodes an object. A panic of the decoder becomes an error.
func decodeSafely(decoder runtime.Decoder, raw []byte, kind *schema.GroupVersionKind) (object runtime.Object, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("malformed object: %v", cause)
		}
	}()
	object, _, err = decoder.Decode(raw, kind, nil)
	if runtime.IsNotRegisteredError(err) {
		return nil, fmt.Errorf("version %s of this kind is not known; export it again with a current kubectl", kind.GroupVersion())
	}
	return object, err
}

// firstLine shortens an error to one line of limited length.
func firstLine(err error) error {
	line, _, _ := strings.Cut(err.Error(), "\n")
	const longest = 300
	if len(line) > longest {
		line = line[:longest] + "…"
	}
	return errors.New(line)
}

// shorten limits the length of a text of a file in an error message.
func shorten(text string) string {
	const longest = 100
	if len(text) > longest {
		return text[:longest] + "…"
	}
	return text
}
