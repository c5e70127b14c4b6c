package clusterfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/snapshot/archive"
)

// change is a change of a store; a nil value is a deletion.
type change struct {
	key   string
	value []byte
}

// storedObject encodes an object as kube-apiserver stores it.
func storedObject(t testing.TB, object runtime.Object) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), v1.SchemeGroupVersion).Encode(object, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// sampleChanges returns changes of nodes and pods: each pod is written, changed and in part deleted, between keys that no
// scheduler reads.
func sampleChanges(t testing.TB, pods int) []change {
	node := &v1.Node{}
	node.Name = "a"
	// The value of this node is larger than a page of etcd's file.
	node.Annotations = map[string]string{"long": strings.Repeat("x", 20_000)}
	changes := []change{{"/registry/minions/a", storedObject(t, node)}, {"/registry/leases/kube-system/x", []byte("no object")}}
	for i := range pods {
		pod := &v1.Pod{}
		pod.Name, pod.Namespace = fmt.Sprintf("p%03d", i), "default"
		key := "/registry/pods/default/" + pod.Name
		changes = append(changes, change{key, storedObject(t, pod)})
		pod.Spec.NodeName = "a"
		changes = append(changes, change{key, storedObject(t, pod)})
		if i%3 == 2 {
			changes = append(changes, change{key, nil})
		}
	}
	return changes
}

// etcdSnapshot returns a snapshot of etcd, written by bbolt.
func etcdSnapshot(t testing.TB, changes []change) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, other := range []string{"alarm", "lease", "meta"} {
			if _, err := tx.CreateBucket([]byte(other)); err != nil {
				return err
			}
		}
		bucket, err := tx.CreateBucket(keyBucket)
		if err != nil {
			return err
		}
		for i, change := range changes {
			key := binary.BigEndian.AppendUint64(nil, uint64(i+2))
			key = binary.BigEndian.AppendUint64(append(key, '_'), 0)
			if change.value == nil {
				key = append(key, 't')
			}
			value, err := proto.Marshal(&mvccpb.KeyValue{Key: []byte(change.key), Value: change.value})
			if err != nil {
				return err
			}
			if err := bucket.Put(key, value); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	return append(content, sum[:]...)
}

// memEtcdSnapshot returns a snapshot of mem_etcd, as `etcdctl snapshot save` receives it (docs/store-format.md).
func memEtcdSnapshot(t testing.TB, changes []change) []byte {
	t.Helper()
	var file bytes.Buffer
	header := binary.LittleEndian.AppendUint16([]byte(memEtcdMagic), 1)
	header = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(header, 0), 0)
	file.Write(binary.LittleEndian.AppendUint32(header, crc32.Checksum(header, castagnoli)))
	records := [][]byte{{tagOpened, 0, 4, 'b', 'o', 'o', 't', tagBound, 9, tagClock, 3, tagLease, 7, 60, 3}}
	for i, change := range changes {
		var effect []byte
		if change.value == nil {
			effect = appendBytes(append(effect, tagDelete, byte(i)&0x7f), change.key)
		} else {
			effect = append(effect, tagPut, byte(i)&0x7f, 1, 1, 0)
			effect = appendBytes(appendBytes(effect, change.key), string(change.value))
		}
		records = append(records, effect)
	}
	records = append(records, []byte{tagRevision, 100}, nil)
	for i, payload := range records {
		rest := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
		rest = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(rest, uint64(i+1)), 0)
		sum := crc32.Update(crc32.Checksum(rest, castagnoli), castagnoli, payload)
		file.Write(binary.LittleEndian.AppendUint32(nil, sum))
		file.Write(rest)
		file.Write(payload)
	}
	file.Write(make([]byte, (512-file.Len()%512)%512))
	sum := sha256.Sum256(file.Bytes())
	file.Write(sum[:])
	return file.Bytes()
}

func appendBytes(to []byte, value string) []byte {
	return append(binary.AppendUvarint(to, uint64(len(value))), value...)
}

// archiveOf returns a snapshot of k1m with one store.
func archiveOf(t testing.TB, store []byte) []byte {
	t.Helper()
	var file bytes.Buffer
	_, err := archive.Write(&file, archive.Manifest{Store: archive.Store{Kind: clusterdir.StoreEtcd}}, []archive.Content{
		archive.InMemory(archive.ClusterFile, []byte("{}")), archive.InMemory("pki/ca.crt", []byte("certificate")),
		archive.InMemory("pki/ca.key", []byte("key")), archive.InMemory(archive.StoreFile, store),
	})
	if err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// snapshots returns the same store in each format.
func snapshots(t testing.TB, pods int) map[string][]byte {
	changes := sampleChanges(t, pods)
	etcd, memEtcd := etcdSnapshot(t, changes), memEtcdSnapshot(t, changes)
	return map[string][]byte{
		"etcd": etcd, "etcd without checksum": etcd[:len(etcd)-sha256.Size], "mem_etcd": memEtcd,
		"k1m with etcd": archiveOf(t, etcd), "k1m with mem_etcd": archiveOf(t, memEtcd),
	}
}

// TestSnapshotsOfStores reads a store with many revisions: the last one of each key counts.
func TestSnapshotsOfStores(t *testing.T) {
	const pods = 1000
	for name, content := range snapshots(t, pods) {
		for _, source := range []string{"file", "standard input"} {
			t.Run(name+" from "+source, func(t *testing.T) {
				paths, stdin := []string{write(t, "snapshot", string(content))}, strings.NewReader("")
				if source != "file" {
					paths, stdin = []string{Stdin}, strings.NewReader(string(content))
				}
				objects, err := Load(paths, stdin)
				if err != nil {
					t.Fatal(err)
				}
				if got, want := len(objects.Pods()), pods-pods/3; got != want {
					t.Errorf("Load() has %d pods, want %d", got, want)
				}
				for _, pod := range objects.Pods() {
					if pod.Spec.NodeName != "a" {
						t.Fatalf("pod %s has the node %q of an old revision", pod.Name, pod.Spec.NodeName)
					}
				}
				if nodes := objects.Nodes(); len(nodes) != 1 || len(nodes[0].Annotations["long"]) != 20_000 {
					t.Errorf("Load() has nodes %d, want one with its long annotation", len(nodes))
				}
			})
		}
	}
}

// TestDamagedSnapshotsAreRefused cuts snapshots off, and changes one byte at a time.
func TestDamagedSnapshotsAreRefused(t *testing.T) {
	for name, content := range snapshots(t, 5) {
		for _, size := range []int{len(content) / 2, len(content) - 1} {
			if _, err := Load([]string{write(t, "snapshot", string(content[:size]))}, nil); err == nil && name != "etcd without checksum" {
				t.Errorf("%s: the first %d of %d bytes are accepted", name, size, len(content))
			}
		}
		if strings.HasPrefix(name, "etcd") {
			continue
		}
		for at := 0; at < len(content); at += max(1, len(content)/50) {
			damaged := bytes.Clone(content)
			damaged[at] ^= 0x40
			if _, err := Load([]string{write(t, "snapshot", string(damaged))}, nil); err == nil {
				t.Errorf("%s: a changed byte at %d is accepted", name, at)
			}
		}
	}
}

// TestPagesInACircleAreRefused makes a branch page of an etcd snapshot its own child.
func TestPagesInACircleAreRefused(t *testing.T) {
	content := etcdSnapshot(t, sampleChanges(t, 1000))
	content = content[:len(content)-sha256.Size]
	pageSize, changed := os.Getpagesize(), 0
	for at := 0; at+pageSize <= len(content); at += pageSize {
		if le.Uint16(content[at+8:]) == branchFlag && le.Uint64(content[at:]) == uint64(at/pageSize) {
			le.PutUint64(content[at+pageHeaderBytes+8:], uint64(at/pageSize))
			changed++
		}
	}
	if changed == 0 {
		t.Fatal("the snapshot has no branch page")
	}
	_, err := Load([]string{write(t, "snapshot", string(content))}, nil)
	if err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("Load() = error %v, want one that says that the snapshot is damaged", err)
	}
}

// TestValuesThatCannotBeRead checks the errors for values that kube-apiserver has encrypted, or stored in an old version.
func TestValuesThatCannotBeRead(t *testing.T) {
	for name, c := range map[string]struct{ value, want string }{
		"encrypted":      {"k8s:enc:aescbc:v1:key:secret", "encrypted"},
		"an old version": {`{"apiVersion":"policy/v1beta1","kind":"PodDisruptionBudget","metadata":{"name":"x"}}`, "policy/v1beta1"},
		"garbage":        {"garbage", "decoding the value"},
	} {
		t.Run(name, func(t *testing.T) {
			content := etcdSnapshot(t, []change{{"/registry/poddisruptionbudgets/default/x", []byte(c.value)}})
			_, err := Load([]string{write(t, "snapshot", string(content))}, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("Load() = error %v, want one line with %q", err, c.want)
			}
		})
	}
}

// TestSpansAreRemoved checks the effect of mem_etcd that removes a range of keys.
func TestSpansAreRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		first, end string
		want       int
	}{
		"one key": {"/registry/pods/b", "", 2}, "a range": {"/registry/pods/a", "/registry/pods/c", 1}, "to the end": {"/registry/pods/b", "\x00", 1},
	} {
		s := newStoredValues()
		for _, key := range []string{"a", "b", "c"} {
			if err := s.put("/registry/pods/"+key, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		s.removeSpan(c.first, c.end)
		if len(s.values) != c.want || s.bytes != int64(c.want) {
			t.Errorf("%s: %d keys and %d bytes are left, want %d", name, len(s.values), s.bytes, c.want)
		}
	}
}
