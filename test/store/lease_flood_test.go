package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

const nodeLeasePrefix = "/registry/leases/kube-node-lease/"

// leaseCodec encodes and decodes Leases as kube-apiserver stores them.
func leaseCodec() runtime.Codec {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	return scheme.Codecs.CodecForVersions(info.Serializer, info.Serializer, coordinationv1.SchemeGroupVersion, coordinationv1.SchemeGroupVersion)
}

// storedLease returns a Lease with fields that etcd-bench does not know.
func storedLease(name string, renewed time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "kube-node-lease", UID: "0a1b", Labels: map[string]string{"a": "b"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: "2c3d"}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kubelet", Operation: "Update", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(name), LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: renewed},
			Strategy: new(coordinationv1.OldestEmulationVersion), PreferredHolder: new("other"),
		},
	}
}

// TestLeaseFloodOfExistingLeases renews Leases while another client changes them. No renewal fails, and the value of
// each Lease is the last one of the other client with another renewTime.
func TestLeaseFloodOfExistingLeases(t *testing.T) {
	const count, changes = 7, 200
	s, codec := startMemEtcd(t, "--wal-mode", "none"), leaseCodec()
	kv := s.dial().kv
	encode := func(lease *coordinationv1.Lease) []byte {
		value, err := runtime.Encode(codec, lease)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	put := func(ctx context.Context, lease *coordinationv1.Lease) {
		if _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte(nodeLeasePrefix + lease.Name), Value: encode(lease)}); err != nil {
			t.Error(err)
		}
	}
	long := time.Unix(1_700_000_000, 999_999_000)
	for i := range count {
		put(t.Context(), storedLease(fmt.Sprintf("node-%d", i), long))
	}
	flood := exec.Command(binary(t, "etcd-bench"), "lease-flood", "--existing", "--clients", "2", "--duration", "2s", "--rate", "2000",
		"--endpoints", "http://"+s.address, "--output", "json")
	var output, errors bytes.Buffer
	flood.Stdout, flood.Stderr = &output, &errors
	if err := flood.Start(); err != nil {
		t.Fatal(err)
	}
	for i := range changes {
		lease := storedLease(fmt.Sprintf("node-%d", i%count), long)
		lease.Labels["a"] = fmt.Sprint(i)
		put(t.Context(), lease)
		time.Sleep(5 * time.Millisecond)
	}
	var report struct{ Ops, Errors int }
	if err := flood.Wait(); err != nil || json.Unmarshal(output.Bytes(), &report) != nil {
		t.Fatalf("etcd-bench: %v\n%s%s", err, output.Bytes(), errors.Bytes())
	}
	if report.Errors != 0 || report.Ops < 1000 {
		t.Errorf("%d renewals and %d errors, want thousands and none", report.Ops, report.Errors)
	}
	begun := time.Now().Add(-time.Minute)
	for i := range count {
		name := fmt.Sprintf("node-%d", i)
		response, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte(nodeLeasePrefix + name)})
		if err != nil || len(response.Kvs) != 1 {
			t.Fatalf("reading %s: %v, %v", name, response, err)
		}
		got := &coordinationv1.Lease{}
		if err := runtime.DecodeInto(codec, response.Kvs[0].Value, got); err != nil {
			t.Fatal(err)
		}
		if got.Spec.RenewTime.Before(&metav1.MicroTime{Time: begun}) {
			t.Errorf("%s was renewed at %v, want less than a minute ago", name, got.Spec.RenewTime)
		}
		want := storedLease(name, got.Spec.RenewTime.Time)
		want.Labels["a"] = fmt.Sprint((changes-1-i)/count*count + i)
		if !bytes.Equal(response.Kvs[0].Value, encode(want)) {
			t.Errorf("%s is %+v, want %+v", name, got, want)
		}
	}
}
