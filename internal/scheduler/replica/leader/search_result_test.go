package leader

import (
	"fmt"
	"testing"

	fwk "k8s.io/kube-scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// TestImagesAreForgotten has pods with different images scheduled one after the other. The leader keeps the images of
// the last answer only.
func TestImagesAreForgotten(t *testing.T) {
	images := map[string]*fwk.ImageStateSummary{}
	for i := range 100 {
		setImages(images, []string{fmt.Sprintf("image-%d", i), "common"}, []wire.Image{{Nodes: 1, Size: 5}, {Nodes: 2, Size: 6}})
	}
	if len(images) != 2 || images["image-99"].NumNodes != 1 || images["common"].Size != 6 {
		t.Errorf("the leader has %d images: %v, want image-99 and common", len(images), images)
	}
}
