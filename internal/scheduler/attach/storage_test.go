package attach_test

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest/generate"
)

// rankers returns the ranker of the scheduler and those of the shards.
func (w *world) rankers() []*rank.Ranker {
	all := []*rank.Ranker{w.ranker}
	for _, shard := range w.shards {
		all = append(all, shard.ranker)
	}
	return all
}

// change creates, replaces or deletes an object of the storage API in the informers of each scheduler and of the reference. It also
// reports it to the rankers, because the informers do not run.
func (w *world) change(informer func(informers.SharedInformerFactory) toolscache.SharedIndexInformer, object any, remove bool) {
	before, exists, err := informer(w.informers[0]).GetIndexer().Get(object)
	w.must(err)
	for _, factory := range w.informers {
		if remove {
			w.must(informer(factory).GetIndexer().Delete(object))
		} else {
			w.must(informer(factory).GetIndexer().Update(object))
		}
	}
	if !exists {
		before = nil
	}
	if remove {
		object = nil
	}
	for _, ranker := range w.rankers() {
		ranker.NoteStorage(before, object)
	}
}

// putCSINode creates or replaces the CSINode of a node.
func (w *world) putCSINode(node string) {
	w.change(func(f informers.SharedInformerFactory) toolscache.SharedIndexInformer {
		return f.Storage().V1().CSINodes().Informer()
	}, w.CSINode(node), false)
}

// changeStorage replaces a CSINode, or binds or unbinds a claim, or attaches a volume to a node or detaches it.
func (w *world) changeStorage() {
	switch n := w.Rand.IntN(10); {
	case n < 3:
		if node := w.RandomNode(); node != nil {
			w.record("change CSINode %s", node.Name)
			w.putCSINode(node.Name)
		}
	case n < 7:
		w.changeClaim()
	default:
		w.changeAttachment()
	}
}

// changeClaim binds a claim to a new volume, or undoes this.
func (w *world) changeClaim() {
	namespace, name := generate.Pick(w.Rand, generate.Namespaces), generate.Pick(w.Rand, []string{"later", "anywhere", "limited-later"})
	key := namespace + "/" + name
	stored, _, err := w.informers[0].Core().V1().PersistentVolumeClaims().Informer().GetIndexer().GetByKey(key)
	w.must(err)
	claim := stored.(*v1.PersistentVolumeClaim).DeepCopy()
	bound := claim.Spec.VolumeName != ""
	volume := generate.Volume(w.Rand, claim)
	claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	if bound {
		claim.Spec.VolumeName, claim.Annotations, claim.Status.Phase = "", nil, v1.ClaimPending
	}
	w.record("bind claim %s: %t", key, !bound)
	w.change(func(f informers.SharedInformerFactory) toolscache.SharedIndexInformer {
		return f.Core().V1().PersistentVolumes().Informer()
	}, volume, bound)
	w.change(func(f informers.SharedInformerFactory) toolscache.SharedIndexInformer {
		return f.Core().V1().PersistentVolumeClaims().Informer()
	}, claim, false)
}

// changeAttachment creates a VolumeAttachment of a volume of the limited driver to a node, or deletes it.
func (w *world) changeAttachment() {
	node := w.RandomNode()
	if node == nil {
		return
	}
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "attached-" + node.Name}}
	volume := generate.Namespaces[0] + "-limited"
	attachment.Spec = storagev1.VolumeAttachmentSpec{
		Attacher: generate.LimitedDriver, NodeName: node.Name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
	}
	_, exists, err := w.informers[0].Storage().V1().VolumeAttachments().Informer().GetIndexer().Get(attachment)
	w.must(err)
	w.record("attached volume on %s: %t", node.Name, !exists)
	w.change(func(f informers.SharedInformerFactory) toolscache.SharedIndexInformer {
		return f.Storage().V1().VolumeAttachments().Informer()
	}, attachment, exists)
}
