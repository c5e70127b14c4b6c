package rank

import (
	"strings"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intern"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// countImages adds to an answer the size of each image of the pod, and the number of nodes that have it.
func (cl *Class) countImages(a *wire.Answer) {
	for _, name := range cl.Images {
		var image wire.Image
		if state := cl.cluster.Images[name]; state != nil {
			image = wire.Image{Nodes: int64(state.NumNodes), Size: state.Size}
		}
		a.Images = append(a.Images, image)
	}
}

// listImages sets Images to the images of the pod, once for each use.
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

// imageSet returns the number of a node's image set: those images of the pod that the node has.
func (cl *Class) imageSet(info *framework.NodeInfo) int32 {
	var present []string
	key := make([]byte, 0, len(cl.Images))
	for _, name := range cl.Images {
		_, onNode := info.ImageStates[name]
		key = intern.AppendBool(key, onNode)
		if onNode {
			present = append(present, name)
		}
	}
	return cl.ImageSetNumber(key, present)
}

// ImageSetNumber returns the number of an image set. Its key has one byte for each image of the pod: 1 if
// the image is in the set, otherwise 0. present are the images in the set.
func (cl *Class) ImageSetNumber(key []byte, present []string) int32 {
	number, fresh := cl.imageSets.Of(key)
	if fresh {
		cl.imageSetImages = append(cl.imageSetImages, present)
		cl.imageSetKeys = append(cl.imageSetKeys, string(key))
	}
	return number
}

// ImageScore returns the weighted score of an image set. As in upstream's ImageLocality, an image scores
// more if more nodes have it.
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

// The score is 0 below smallImageBytes and maximal above largeImageBytes per image
// (imagelocality/image_locality.go).
const (
	smallImageBytes = 23 << 20
	largeImageBytes = 1000 << 20
)

// imageScore scales a sum of image sizes to a score from 0 to fwk.MaxScore. images is the number of images
// of the pod.
func imageScore(sum int64, images int) int64 {
	maxBytes := int64(largeImageBytes) * int64(images)
	sum = min(max(sum, smallImageBytes), maxBytes)
	return fwk.MaxScore * (sum - smallImageBytes) / (maxBytes - smallImageBytes)
}

// imageName returns the name of an image as nodes report it: with the tag latest if it has no tag.
func imageName(name string) string {
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		name += ":latest"
	}
	return name
}

// ImagesOf returns the images in the image set with a key.
func (cl *Class) ImagesOf(key []byte) []string {
	var present []string
	for i, name := range cl.Images {
		if i < len(key) && key[i] != 0 {
			present = append(present, name)
		}
	}
	return present
}
