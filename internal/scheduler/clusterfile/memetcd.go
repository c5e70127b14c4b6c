package clusterfile

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// This file reads snapshots of mem_etcd (docs/store-format.md): those in a data directory, and those that
// `etcdctl snapshot save` receives.
const (
	memEtcdMagic       = "K1MSNP"
	oldHeaderBytes     = 24 // formats 1 and 2
	headerBytes        = 44
	newestFormat       = 4
	firstOwnedFormat   = 3
	recordHeaderBytes  = 24
	maxRecordBytes     = 1 << 30
	maxRecordGrowBytes = 1 << 20
)

// The tags of effects.
const (
	tagPut         = 1
	tagDelete      = 2
	tagLeaseOld    = 3
	tagRevoked     = 4
	tagCompacted   = 5
	tagBase        = 6
	tagRevision    = 7
	tagBound       = 8
	tagOpened      = 9
	tagClosed      = 10
	tagSpan        = 11
	tagLease       = 12
	tagRenewed     = 13
	tagAllRenewed  = 14
	tagClock       = 15
	tagAlarm       = 20
	tagAlarmOff    = 21
	tagAuthOn      = 22
	tagAuthOff     = 23
	tagUser        = 24
	tagUserDeleted = 25
	tagRole        = 26
	tagRoleDeleted = 27
)

// layouts are the fields of the effects that have no objects: v is a number, b are bytes.
var layouts = map[byte]string{
	tagLeaseOld: "vv", tagRevoked: "v", tagCompacted: "v", tagRevision: "v", tagBound: "v", tagOpened: "vb", tagClosed: "vv",
	tagLease: "vvv", tagRenewed: "vv", tagAllRenewed: "v", tagClock: "v", tagAlarm: "vv", tagAlarmOff: "vv", tagAuthOn: "v",
	tagAuthOff: "v", tagUser: "vb", tagUserDeleted: "vb", tagRole: "vb", tagRoleDeleted: "vb",
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// readMemEtcd reads a snapshot of mem_etcd of a size. A client that received it got padding and a checksum after its end.
func readMemEtcd(r *bufio.Reader, size int64, objects *Objects, source string) error {
	values := newStoredValues()
	err := readRecords(r, values)
	if _, endErr := r.ReadByte(); err == nil && endErr == nil && size%alignment != hashBytes {
		err = errors.New("its checksum is incomplete")
	}
	if err != nil {
		return fmt.Errorf("%s: the mem_etcd snapshot is damaged, or was cut off: %w", source, err)
	}
	return values.addTo(objects, source)
}

// readRecords reads the header and all records up to the empty one at the end.
func readRecords(r *bufio.Reader, values *storedValues) error {
	if err := skipHeader(r); err != nil {
		return err
	}
	for number := uint64(1); ; number++ {
		payload, err := readRecord(r, number)
		if err != nil {
			return fmt.Errorf("record %d: %w", number, err)
		}
		if len(payload) == 0 {
			return nil
		}
		if err := applyEffects(payload, values); err != nil {
			return fmt.Errorf("record %d: %w", number, err)
		}
	}
}

func skipHeader(r *bufio.Reader) error {
	head, err := r.Peek(len(memEtcdMagic) + 2)
	if err != nil {
		return err
	}
	format, size := le.Uint16(head[len(memEtcdMagic):]), oldHeaderBytes
	if format > newestFormat {
		return fmt.Errorf("it has format %d, which this version does not know", format)
	}
	if format >= firstOwnedFormat {
		size = headerBytes
	}
	header := make([]byte, size)
	if _, err := io.ReadFull(r, header); err != nil {
		return err
	}
	if crc32.Checksum(header[:size-4], castagnoli) != le.Uint32(header[size-4:]) {
		return errors.New("the checksum of its header is wrong")
	}
	return nil
}

// readRecord returns the payload of the next record.
func readRecord(r io.Reader, number uint64) ([]byte, error) {
	header := make([]byte, recordHeaderBytes)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, err
	}
	size := int64(le.Uint32(header[4:]))
	if size > maxRecordBytes || le.Uint64(header[8:]) != number {
		return nil, errors.New("its header is wrong")
	}
	payload, err := readBytes(r, size)
	if err != nil {
		return nil, err
	}
	if crc32.Update(crc32.Checksum(header[4:], castagnoli), castagnoli, payload) != le.Uint32(header) {
		return nil, errors.New("its checksum is wrong")
	}
	return payload, nil
}

// readBytes reads a number of bytes that a file states. It needs no more memory than the file has bytes.
func readBytes(r io.Reader, size int64) ([]byte, error) {
	buffer := make([]byte, 0, min(size, maxRecordGrowBytes))
	for int64(len(buffer)) < size {
		part := make([]byte, min(size-int64(len(buffer)), maxRecordGrowBytes))
		if _, err := io.ReadFull(r, part); err != nil {
			return nil, err
		}
		buffer = append(buffer, part...)
	}
	return buffer, nil
}

// fields reads the fields of effects.
type fields struct {
	left []byte
	err  error
}

var errCutOff = errors.New("an effect is cut off")

func (f *fields) number() uint64 {
	value, size := binary.Uvarint(f.left)
	if size <= 0 {
		f.left, f.err = nil, errCutOff
		return 0
	}
	f.left = f.left[size:]
	return value
}

func (f *fields) bytes() []byte {
	size := f.number()
	if f.err == nil && size > uint64(len(f.left)) {
		f.left, f.err = nil, errCutOff
	}
	if f.err != nil {
		return nil
	}
	value := f.left[:size]
	f.left = f.left[size:]
	return value
}

// skip reads fields of a layout.
func (f *fields) skip(layout string) {
	for _, field := range layout {
		if field == 'v' {
			f.number()
		} else {
			f.bytes()
		}
	}
}

// applyEffects applies the effects of a record.
func applyEffects(payload []byte, values *storedValues) error {
	f := &fields{left: payload}
	for len(f.left) > 0 {
		tag := f.left[0]
		f.left = f.left[1:]
		if err := f.apply(tag, values); err != nil {
			return err
		}
		if f.err != nil {
			return f.err
		}
	}
	return nil
}

// apply reads the fields of one effect, and applies it.
func (f *fields) apply(tag byte, values *storedValues) error {
	switch tag {
	case tagPut, tagBase:
		f.skip("vvvv")
		key, value := f.bytes(), f.bytes()
		if f.err == nil {
			return values.put(string(key), value)
		}
	case tagDelete:
		f.skip("v")
		if key := f.bytes(); f.err == nil {
			values.remove(string(key))
		}
	case tagSpan:
		first, end := f.bytes(), f.bytes()
		if f.err == nil {
			values.removeSpan(string(first), string(end))
		}
	default:
		layout, known := layouts[tag]
		if !known {
			return fmt.Errorf("it has the unknown effect %d", tag)
		}
		f.skip(layout)
	}
	return nil
}
