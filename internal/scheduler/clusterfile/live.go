package clusterfile

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
)

// pageSize is the number of objects in a page of a list. All pages of a list have one resource version.
const pageSize = 500

// Read reads the objects of a running cluster. It only lists objects. A kind that the API server does not serve has no
// objects.
func Read(ctx context.Context, client kubernetes.Interface) (*Objects, error) {
	objects := New()
	for i := range kinds {
		err := readKind(ctx, client, &kinds[i], objects)
		switch {
		case apierrors.IsNotFound(err):
		case apierrors.IsForbidden(err):
			return nil, fmt.Errorf("reading %s: %w; the user needs the verb list on %s", kinds[i].resource, firstLine(err), kinds[i].resource)
		case err != nil:
			return nil, fmt.Errorf("reading %s: %w", kinds[i].resource, firstLine(err))
		}
	}
	return objects, nil
}

func readKind(ctx context.Context, client kubernetes.Interface, k *kind, objects *Objects) error {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := k.list(ctx, client, options)
		if err != nil {
			return err
		}
		err = meta.EachListItem(list, func(object runtime.Object) error {
			// The items of a page are elements of one slice, which must not stay in memory for the last of them.
			return objects.Add(object.DeepCopyObject(), "the API server")
		})
		if err != nil {
			return err
		}
		accessor, err := meta.ListAccessor(list)
		if err != nil {
			return err
		}
		if options.Continue = accessor.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}
