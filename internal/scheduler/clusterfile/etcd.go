package clusterfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// A snapshot of etcd is a file of bbolt. This reader reads it without mapping it into memory: bbolt trusts the
// page numbers and lengths in a file, and a wrong one ends the process.
//
//	page:    id u64 · flags u16 · count u16 · overflow u32 · elements
//	meta:    magic u32 · version u32 · page size u32 · flags u32 · root page u64 · sequence u64 · freelist u64 ·
//	         pages u64 · transaction u64 · FNV-1a of the fields before u64
//	branch:  offset u32 · key size u32 · page u64
//	leaf:    flags u32 · offset u32 · key size u32 · value size u32
const (
	boltMagic       = 0xED0CDAED
	boltVersion     = 2
	pageHeaderBytes = 16
	metaBytes       = 56
	elementBytes    = 16
	bucketBytes     = 16
	branchFlag      = 0x01
	leafFlag        = 0x02
	bucketFlag      = 0x01
	minPageBytes    = 512
	maxPageBytes    = 64 << 10
	// maxPageRun limits one page with its overflow pages. etcd's values have at most some MiB.
	maxPageRun = 64 << 20
	// maxDepth is far above the depth of a tree with 2^40 pages.
	maxDepth = 40
	// revisionBytes is the size of a key: revision, '_', number of the change. The key of a deletion has one byte more.
	revisionBytes = 8 + 1 + 8
)

var (
	le = binary.LittleEndian
	// keyBucket is the bucket of etcd with all changes, by revision.
	keyBucket    = []byte("key")
	errDamaged   = errors.New("the etcd snapshot is damaged")
	errTooManyPg = errors.New("the etcd snapshot is damaged: its pages refer to each other in a circle")
)

// boltFile is an open file of bbolt.
type boltFile struct {
	file     io.ReaderAt
	size     int64
	pageSize int64
	root     uint64
	// left is the number of pages that may still be read. A tree has no more pages than the file.
	left int64
}

// isBolt returns whether a file that begins with these bytes is one of bbolt.
func isBolt(head []byte) bool {
	return len(head) >= pageHeaderBytes+8 && le.Uint32(head[pageHeaderBytes:]) == boltMagic
}

// readEtcd reads a snapshot of etcd.
func readEtcd(file io.ReaderAt, size int64, objects *Objects, source string) error {
	db, err := openBolt(file, size)
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	root, err := db.findKeyBucket()
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	values := newStoredValues()
	// The order of the keys is that of the revisions, so the last change of a key comes last.
	err = db.each(root, 0, func(revision, value []byte, bucket bool) error {
		if bucket || len(revision) < revisionBytes {
			return errDamaged
		}
		pair := &mvccpb.KeyValue{}
		if err := proto.Unmarshal(value, pair); err != nil {
			return fmt.Errorf("%w: a change is malformed", errDamaged)
		}
		if len(revision) > revisionBytes {
			values.remove(string(pair.Key))
			return nil
		}
		return values.put(string(pair.Key), pair.Value)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	return values.addTo(objects, source)
}

// openBolt reads the meta pages, of which the one of the later transaction counts.
func openBolt(file io.ReaderAt, size int64) (*boltFile, error) {
	db := &boltFile{file: file, size: size}
	var latest uint64
	first, err := db.readMeta(0)
	if err != nil {
		return nil, err
	}
	sizes := []int64{4096, 8192, 16384, 32768, 65536, 1024, 2048, 512}
	if first != nil {
		sizes = []int64{int64(le.Uint32(first[8:]))}
		db.use(first)
		latest = le.Uint64(first[48:])
	}
	for _, pageSize := range sizes {
		if second, err := db.readMeta(pageSize); err != nil {
			return nil, err
		} else if second != nil && (db.pageSize == 0 || le.Uint64(second[48:]) > latest) {
			db.use(second)
			break
		}
	}
	if db.pageSize == 0 {
		return nil, fmt.Errorf("%w: it has no intact meta page; take another snapshot", errDamaged)
	}
	db.left = size/db.pageSize + 1
	return db, nil
}

// use takes the fields of a meta page.
func (db *boltFile) use(meta []byte) {
	db.pageSize, db.root = int64(le.Uint32(meta[8:])), le.Uint64(meta[16:])
}

// readMeta returns the fields of the meta page at an offset; nil if it is not intact.
func (db *boltFile) readMeta(offset int64) ([]byte, error) {
	if offset+pageHeaderBytes+metaBytes+8 > db.size {
		return nil, nil
	}
	meta := make([]byte, metaBytes+8)
	if _, err := db.file.ReadAt(meta, offset+pageHeaderBytes); err != nil {
		return nil, err
	}
	sum := fnv.New64a()
	_, _ = sum.Write(meta[:metaBytes])
	pageSize := int64(le.Uint32(meta[8:]))
	if le.Uint32(meta) != boltMagic || le.Uint32(meta[4:]) != boltVersion || sum.Sum64() != le.Uint64(meta[metaBytes:]) ||
		pageSize < minPageBytes || pageSize > maxPageBytes {
		return nil, nil
	}
	return meta, nil
}

// page returns a page with its overflow pages.
func (db *boltFile) page(number uint64) ([]byte, error) {
	if db.left--; db.left < 0 {
		return nil, errTooManyPg
	}
	if number > uint64(db.size/db.pageSize) {
		return nil, fmt.Errorf("%w: it has no page %d", errDamaged, number)
	}
	offset := int64(number) * db.pageSize
	header := make([]byte, pageHeaderBytes)
	if _, err := db.file.ReadAt(header, offset); err != nil {
		return nil, fmt.Errorf("%w: page %d cannot be read: %w", errDamaged, number, err)
	}
	run := (int64(le.Uint32(header[12:])) + 1) * db.pageSize
	if run > maxPageRun || offset+run > db.size {
		return nil, fmt.Errorf("%w: page %d is longer than the file", errDamaged, number)
	}
	page := make([]byte, run)
	_, err := db.file.ReadAt(page, offset)
	return page, err
}

// findKeyBucket returns the page or the inline page of the bucket with etcd's keys.
func (db *boltFile) findKeyBucket() (root bucketRoot, err error) {
	found := false
	err = db.each(bucketRoot{page: db.root}, 0, func(name, value []byte, bucket bool) error {
		if !bucket || !bytes.Equal(name, keyBucket) {
			return nil
		}
		if len(value) < bucketBytes {
			return errDamaged
		}
		found, root = true, bucketRoot{page: le.Uint64(value), inline: bytes.Clone(value[bucketBytes:])}
		return nil
	})
	if err == nil && !found {
		err = errors.New("it is a file of bbolt, but not a snapshot of etcd 3: it has no bucket of keys")
	}
	return root, err
}

// bucketRoot is the root of a tree: a page, or if this is 0, the inline page of a small bucket.
type bucketRoot struct {
	page   uint64
	inline []byte
}

// each calls visit for each element of a tree, in the order of the keys.
func (db *boltFile) each(root bucketRoot, depth int, visit func(key, value []byte, bucket bool) error) error {
	if depth > maxDepth {
		return errTooManyPg
	}
	page := root.inline
	if root.page != 0 {
		var err error
		if page, err = db.page(root.page); err != nil {
			return err
		}
	}
	if len(page) < pageHeaderBytes {
		return errDamaged
	}
	flags, count := le.Uint16(page[8:]), int(le.Uint16(page[10:]))
	if pageHeaderBytes+count*elementBytes > len(page) {
		return errDamaged
	}
	for i := range count {
		at := pageHeaderBytes + i*elementBytes
		element := page[at : at+elementBytes]
		var err error
		switch flags {
		case branchFlag:
			err = db.each(bucketRoot{page: le.Uint64(element[8:])}, depth+1, visit)
		case leafFlag:
			err = visitLeaf(page, at, visit)
		default:
			err = fmt.Errorf("%w: page %d is neither a branch nor a leaf", errDamaged, root.page)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// visitLeaf calls visit for the leaf element at an offset of a page.
func visitLeaf(page []byte, at int, visit func(key, value []byte, bucket bool) error) error {
	element := page[at : at+elementBytes]
	keySize, valueSize := int64(le.Uint32(element[8:])), int64(le.Uint32(element[12:]))
	key := int64(at) + int64(le.Uint32(element[4:]))
	value := key + keySize
	if value+valueSize > int64(len(page)) {
		return errDamaged
	}
	return visit(page[key:value], page[value:value+valueSize], le.Uint32(element)&bucketFlag != 0)
}
