package rank

import (
	"strings"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intern"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// countImages adds to an answer how many nodes have each image of the pod.
func (cl *Class) countImages(a *wire.Answer) {
	for _, name := range cl.Images {
		var image wire.Image
		if state := cl.cluster.Images[name]; state != nil {
			image = wire.Image{Nodes: int64(state.NumNodes), Size: state.Size}
		}
		a.Images = append(a.Images, image)
	}
}

// listImages lists the images of a pod, once for each use.
func (cl *Class) listImages() {
	spec := &cl.pod.GetPod().Spec
	for i := range spec.InitContainers {
		cl.Images = append(cl.Images, imageName(spec.InitContainers[i].Image))
	}
	for i := range spec.Containers {
		cl.Images = append(cl.Images, imageName(spec.Containers[i].Image))
	}
	for i := range spec.Volumes {
		if image := spec.Volumes[i].Image; image != nil {
			cl.Images = append(cl.Images, imageName(image.Reference))
		}
	}
}

// imageSet returns the number of a node's image set: the images of the pod that the node has.
func (cl *Class) imageSet(info *framework.NodeInfo) int32 {
	var present []string
	key := make([]byte, 0, len(cl.Images))
	for _, name := range cl.Images {
		_, has := info.ImageStates[name]
		key = intern.AppendBool(key, has)
		if has {
			present = append(present, name)
		}
	}
	return cl.ImageSetNumber(key, present)
}

// ImageSetNumber returns the number of an image set. Its key has a byte for each image of the
// pod.
func (cl *Class) ImageSetNumber(key []byte, present []string) int32 {
	number, fresh := cl.imageSets.Of(key)
	if fresh {
		cl.imageSetImages = append(cl.imageSetImages, present)
		cl.imageSetKeys = append(cl.imageSetKeys, string(key))
	}
	return number
}

// ImageScore returns the weighted score of an image set. An image scores more if more nodes have
// it.
func (cl *Class) ImageScore(imageSet int32) int64 {
	weight := cl.profile.weights[pluginnames.ImageLocality]
	present := cl.imageSetImages[imageSet]
	if weight == 0 || len(present) == 0 {
		return 0
	}
	sum, nodes := int64(0), cl.cluster.Size()
	for _, name := range present {
		if image := cl.cluster.Images[name]; image != nil {
			spread := float64(image.NumNodes) / float64(nodes)
			sum += int64(float64(image.Size) * spread)
		}
	}
	return weight * imageScore(sum, len(cl.Images))
}

// The sizes between which an image adds to the score (imagelocality/image_locality.go).
const (
	smallImageBytes = 23 << 20
	largeImageBytes = 1000 << 20
)

// imageScore scales the sum of the sizes of some images to a score.
func imageScore(sum int64, images int) int64 {
	most := int64(largeImageBytes) * int64(images)
	sum = min(max(sum, smallImageBytes), most)
	return fwk.MaxScore * (sum - smallImageBytes) / (most - smallImageBytes)
}

// imageName returns the name of an image as nodes report it.
func imageName(name string) string {
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		name += ":latest"
	}
	return name
}

// ImagesOf returns the images in an image set.
func (cl *Class) ImagesOf(key []byte) []string {
	var present []string
	for i, name := range cl.Images {
		if i < len(key) && key[i] != 0 {
			present = append(present, name)
		}
	}
	return present
}
